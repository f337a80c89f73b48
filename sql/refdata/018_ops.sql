-- Pairs in the order of their names' bytes, as lists of operators have them. A version that rises writes no index.
create index dictionary_meta_names on refdata.dictionary_meta (tenant_id collate "C", dict_code collate "C");
