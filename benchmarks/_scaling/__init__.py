"""The capacity of one shard, and of several: measured figures, and tables computed from them."""
