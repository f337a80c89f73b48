-- Ends the transaction where something is not as its caller expected, who has sent what follows in the same round trip (FB002).
create function platform.expect(is_so boolean, what text) returns boolean
language plpgsql as $$
begin
    if is_so is not true then
        raise exception '%', what using errcode = 'FB002', hint = 'Nothing to do: it is tried again with more care.';
    end if;
    return true;
end
$$;
