-- slots: what scripts for semaphores with slots are given before all other KEYS.
--
-- KEYS     slots  HASH, permit id -> its slots, 'index+index'; list -> the longest list of slots
--                 that a client declares: see the prelude

local slots = KEYS[1]
local KEYS = { unpack(KEYS, 2) }
