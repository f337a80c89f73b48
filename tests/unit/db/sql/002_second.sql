-- The second one.
-- oldest program: 002
ALTER TABLE moved.odd ADD CHECK (text <> '')