-- Text that a C string literal must not change.
CREATE SCHEMA moved;
CREATE TABLE moved.odd (text text);
INSERT INTO moved.odd VALUES ('quote " backslash \ tab 	 trigraph ??/ €
line two');
