"""What the system tests share: a PostgreSQL of their own, the real program, raw HTTP, tokens, patience."""
