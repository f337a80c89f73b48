-- Pages of event_log, bounded in rows and bytes. Loops, since an event's size is known by writing it: what lies behind the
-- page is neither read nor written, however long it is.

-- What a session's stream is told behind p_after. p_bytes is exceeded by at most one event.
create function chat.events_after(p_tenant_id text, p_session_id uuid, p_after bigint, p_rows bigint, p_bytes bigint)
returns table (sequence bigint, line text)
language plpgsql stable
as $$
declare
    v_event chat.event_log;
    v_bytes bigint := 0;
begin
    for v_event in
        select * from chat.event_log g
        where g.tenant_id = p_tenant_id and g.session_id = p_session_id and g.sequence > p_after
        order by g.sequence limit p_rows
    loop
        exit when v_bytes >= p_bytes;
        sequence := v_event.sequence;
        line := chat.event_json(v_event.event_id, v_event.event_type, v_event.sequence, v_event.session_id,
                                v_event.created_at, v_event.payload);
        v_bytes := v_bytes + pg_catalog.octet_length(line);
        return next;
    end loop;
end $$;

-- What happened in a user's sessions of a project behind (p_after, p_after_id). A last row without a line says that more
-- follows, beyond p_rows or p_bytes.
create function chat.events_of(p_tenant_id text, p_project_id uuid, p_user_id uuid, p_event_type text, p_from timestamptz,
                               p_to timestamptz, p_after timestamptz, p_after_id uuid, p_rows bigint, p_bytes bigint)
returns table (line text, created_at timestamptz, event_id uuid)
language plpgsql stable
as $$
declare
    v_event chat.event_log;
    v_rows  bigint := 0;
    v_bytes bigint := 0;
begin
    for v_event in
        select * from chat.event_log g
        where g.tenant_id = p_tenant_id and g.project_id = p_project_id and g.user_id = p_user_id
            and (p_event_type is null or g.event_type = p_event_type)
            and g.created_at >= coalesce(p_from, '-infinity') and g.created_at < coalesce(p_to, 'infinity')
            and (g.created_at, g.event_id) > (p_after, p_after_id)
        order by g.created_at, g.event_id limit p_rows + 1
    loop
        line := null;
        created_at := v_event.created_at;
        event_id := v_event.event_id;
        if v_rows < p_rows and v_bytes < p_bytes then
            line := chat.event_json(v_event.event_id, v_event.event_type, v_event.sequence, v_event.session_id,
                                    v_event.created_at, v_event.payload);
        end if;
        return next;
        exit when line is null;
        v_rows := v_rows + 1;
        v_bytes := v_bytes + pg_catalog.octet_length(line);
    end loop;
end $$;
