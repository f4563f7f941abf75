-- keys: what scripts for semaphores with keys are given before the KEYS of the head.
--
-- KEYS     keys        ZSET, whose scores are all 0, so that it is a sorted set of texts: see the
--                      prelude
--          key_limits  HASH, key -> the limit that was set for it

local keys, key_limits = KEYS[1], KEYS[2]
local KEYS = { unpack(KEYS, 3) }
