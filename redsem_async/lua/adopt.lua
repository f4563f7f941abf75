-- adopt: take over a permit, exchanging its id for one of the adopter's.
--
-- The old id is worth nothing afterwards, so a job delivered twice cannot run twice under one
-- permit. The fencing token goes with the permit.
--
-- KEYS     as in the head
-- ARGV     lease_ms  lease of the new holder
--          who       who the hub is, '' when told before
--          deaf      '1' when the hub cannot be told anything
--          owner     hub of the old id
--          old       number of the old id
--          new       number of the new id, of the caller's own hub
--          number    of this call, which acts once at most
-- RETURNS  {tag, token, ms left, permits}, or {tag, -1} when the old id holds nothing;
--          the error VOID when it has acted before, or may not act any more: nothing is done

local lease, who, deaf = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local owner, old, new, number = ARGV[8], ARGV[9], ARGV[10], tonumber(ARGV[11])
local old_id, new_id = owner .. '.' .. old, hub .. '.' .. new

survey()
if stranger and who == '' then return who_are_you() end
call('ZREM', holders, '')  -- a removal first: what follows is let through at maxmemory
local taken = found(new_id)
if not taken and acted(number) then return redis.error_reply('VOID') end
introduce(who, deaf, lease)
touch(lease)
if not taken then
  note_call(number)
  taken = found(old_id)
  if not taken then return { tag, -1 } end
  local permits = permits_of(old_id)
  drop({ old_id })
  bar({ old_id })
  taken[2] = math.max(taken[2], lease)
  hold({ { new_id, tonumber(taken[1]), taken[2], permits } })
  if owner ~= hub then tell(owner, 'gone', old) end
end
return { tag, taken[1], taken[2], permits_of(new_id) }
