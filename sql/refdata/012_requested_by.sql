-- Who asked for an update: the token's sub or the mTLS client's identity, `kafka:TOPIC` for what came by a topic; null = not known.
alter table refdata.update_request add column requested_by text;
