"""How far one shard goes, and what to do then: figures measured, tables computed from them."""
