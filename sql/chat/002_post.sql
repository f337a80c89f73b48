-- One row of the outbox; `payload` lacks its event_id.
create function chat.add_event(p_session chat.chat_sessions, p_event_type text, p_sequence bigint, p_payload jsonb,
                               p_at timestamptz, p_traceparent text) returns void
language sql
as $$
    insert into chat.event_outbox (id, aggregate_type, aggregate_id, project_id, user_id, event_type, payload, created_at,
                                   tenant_id, sequence, traceparent)
    select e.id, 'chat_session', p_session.session_id, p_session.project_id, p_session.user_id, p_event_type,
           pg_catalog.jsonb_build_object('event_id', e.id) || p_payload, p_at, p_session.tenant_id, p_sequence, p_traceparent
    from (select pg_catalog.gen_random_uuid() as id) e
$$;

-- One message and its event.
create function chat.add_message(p_session chat.chat_sessions, p_role text, p_content text, p_agent text, p_routing_score numeric,
                                 p_sequence bigint, p_at timestamptz, p_traceparent text) returns uuid
language plpgsql
as $$
declare
    v_id uuid := pg_catalog.gen_random_uuid();
begin
    insert into chat.messages (message_id, tenant_id, project_id, session_id, user_id, sequence, role, content, agent,
                               routing_score, created_at)
    values (v_id, p_session.tenant_id, p_session.project_id, p_session.session_id, p_session.user_id, p_sequence, p_role,
            p_content, p_agent, p_routing_score, p_at);
    perform chat.add_event(p_session, 'message_created', p_sequence,
                           pg_catalog.jsonb_build_object('message_id', v_id, 'role', p_role, 'content', p_content),
                           p_at, p_traceparent);
    return v_id;
end $$;

-- The session with its row locked, made where there is none; null when it is another's, or in another project.
create function chat.open_session(p_tenant_id text, p_project_id uuid, p_session_id uuid, p_user_id uuid)
returns chat.chat_sessions
language plpgsql
as $$
declare
    v_session chat.chat_sessions;
    v_now timestamptz := pg_catalog.clock_timestamp();
begin
    loop
        select * into v_session from chat.chat_sessions s
        where s.tenant_id = p_tenant_id and s.session_id = p_session_id for update;
        if found then
            if v_session.user_id <> p_user_id or v_session.project_id <> p_project_id then
                return null;
            end if;
            return v_session;
        end if;
        insert into chat.chat_sessions (tenant_id, session_id, project_id, user_id, last_at, created_at)
        values (p_tenant_id, p_session_id, p_project_id, p_user_id, v_now, v_now)
        on conflict do nothing; -- made meanwhile by another: then that one counts
    end loop;
end $$;

-- A message with its answer, and an event for each domain fact, in the caller's transaction (M1). p_role is the answer's:
-- 'assistant', or 'system' where the agent failed. Times are the clock's, but never before what the session has.
create function chat.post_message(p_tenant_id text, p_project_id uuid, p_session_id uuid, p_user_id uuid, p_content text,
                                  p_agent text, p_routing_score numeric, p_role text, p_reply text, p_traceparent text,
                                  out status integer, out body text)
language plpgsql
as $$
declare
    v_session  chat.chat_sessions := chat.open_session(p_tenant_id, p_project_id, p_session_id, p_user_id);
    v_sequence bigint;
    v_last     bigint;
    v_at       timestamptz;
    v_step     constant interval := '1 microsecond';
    v_id       uuid;
begin
    if v_session.session_id is null then
        status := 404;
        body := '{"code":"SESSION_NOT_FOUND","message":"no such session"}';
        return;
    end if;
    v_sequence := v_session.last_sequence + 1;
    v_at := greatest(pg_catalog.clock_timestamp(), v_session.last_at + v_step);
    v_id := chat.add_message(v_session, 'user', p_content, null, null, v_sequence, v_at, p_traceparent);
    v_last := v_sequence;
    if v_session.agent <> p_agent then -- the first one is no change
        v_last := v_last + 1;
        perform chat.add_event(v_session, 'agent_switched', v_last,
                               pg_catalog.jsonb_build_object('from', v_session.agent, 'to', p_agent,
                                                             'routing_score', p_routing_score),
                               v_at + v_step, p_traceparent);
    end if;
    v_last := v_last + 1;
    perform chat.add_message(v_session, p_role, p_reply, p_agent, p_routing_score, v_last, v_at + 2 * v_step, p_traceparent);
    update chat.chat_sessions s
    set agent = p_agent, last_sequence = v_last, last_message_sequence = v_last, last_at = v_at + 2 * v_step
    where s.tenant_id = p_tenant_id and s.session_id = p_session_id;
    status := 200;
    body := '{"message_id":"' || v_id || '","session_id":"' || p_session_id || '","sequence":' || v_sequence
        || ',"created_at":"' || platform.rfc3339(v_at) || '","agent":' || pg_catalog.to_json(p_agent)::text
        || ',"routing_score":' || p_routing_score
        || ',"reply":' || case p_role when 'assistant' then pg_catalog.to_json(p_reply)::text else 'null' end || '}';
end $$;

-- The publisher's: what it is about to tell of is in the log. Once each, however often it is told; not waiting for the disk,
-- since what a crash takes back is in the outbox still.
create function chat.log_events(p_ids uuid[]) returns integer
language plpgsql
as $$
declare
    v_count integer;
begin
    perform pg_catalog.set_config('synchronous_commit', 'off', true);
    insert into chat.event_log (event_id, tenant_id, project_id, user_id, session_id, sequence, event_type, payload, created_at)
    select e.id, e.tenant_id, e.project_id, e.user_id, e.aggregate_id, e.sequence, e.event_type, e.payload, e.created_at
    from chat.event_outbox e where e.id = any (p_ids)
    order by e.tenant_id, e.aggregate_id, e.sequence -- two who tell of the same wait for one another
    on conflict do nothing;
    get diagnostics v_count = row_count;
    return v_count;
end $$;
