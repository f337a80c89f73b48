-- Locks the cursor of a group in one partition for a process that handles its messages directly (src/bus/postgres/cursors.c), and ends the
-- transaction where another process has it or a message waits there (FB002). Never waits. The caller has sent what follows in the same
-- round trip.
create function platform.lock_cursor(of_group text, of_topic text, of_partition integer) returns void
language plpgsql as $$
begin
    perform from platform.bus_cursor c
      where c.group_name = of_group and c.topic = of_topic and c.partition = of_partition
        and c.position = (select p.next_offset from platform.bus_partition p
                           where p.topic = of_topic and p.partition = of_partition)
        for update skip locked;
    if not found then
        raise exception 'another process handles this partition, or messages wait there'
            using errcode = 'FB002', hint = 'Nothing to do: it is tried again with more care.';
    end if;
end
$$;
