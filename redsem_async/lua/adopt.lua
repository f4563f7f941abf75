-- adopt: move a held permit from its old id to a new id of the adopter's hub.
--
-- The old id holds nothing afterwards, so a job that is delivered twice cannot run twice under one
-- permit. The fencing token stays the same.
--
-- ARGV     lease_ms  lease of the new holder
--          hub_info  facts about the caller's hub, '' when sent before
--          no_push   '1' when no push message reaches the hub, '2' when nobody counts it
--          owner     hub of the old id
--          old       number of the old id
--          new       number of the new id, of the caller's hub
--          number    number of this operation, which runs at most once
--          [max_hold]  ms for which the permit is held at most, from its grant on; '' for ever
--          [declared]  the list of slots, as for acquire
-- RETURNS  {tag, token, ms left, permits}, or {tag, -1} when the old id holds nothing; with
--          max_hold also how many ms ago the permit was granted; where permits have slots, also
--          its slots; where requests have keys, also its key or '';
--          the error VOID when this operation ran before, or must not run any more: it then
--          changes nothing
--
-- uses: holders (allow_writes_at_maxmemory grant_of load_state remove_holders write_grants), hubs
--       (already_ran note_call record_hub unknown_hub_error), tell (publish_to)

local lease, hub_info, no_push = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local owner, old, new, number = ARGV[8], ARGV[9], ARGV[10], tonumber(ARGV[11])
local max_hold = tonumber(ARGV[12] or '')
local old_id, new_id = owner .. '.' .. old, hub .. '.' .. new

load_state()
if not known and hub_info == '' then return unknown_hub_error() end
local grant = grant_of(new_id)
local before = not grant and grant_of(old_id)
if slotted then
  local length, refusal = slotted.compare(ARGV[13], grant or before)
  if not length then return refusal end
end
if not grant and already_ran(number, 'calls') then return redis.error_reply('VOID') end
allow_writes_at_maxmemory()
record_hub(hub_info, no_push, lease)
if not grant then
  note_call(number, 'calls')
  if not before then return { tag, -1 } end
  if max_hold then lease = math.min(lease, max_hold - before.held) end
  grant = before
  grant.id, grant.left = new_id, math.max(before.left, lease)
  grant.lease = grant.left
  -- The new holder counts before the old one leaves, because a key that holds nothing loses its virtual
  -- time. It is written afterwards, because no token is held twice.
  if keyed then keyed.occupy(grant.key, grant.permits) end
  remove_holders({ old_id })
  write_grants({ grant })
  if owner ~= hub then publish_to(owner, 'revoked', old) end
end
local reply = { tag, grant.token, grant.left, grant.permits }
if max_hold then reply[5] = grant.held end
if slotted then reply[#reply + 1] = grant.slots end
if keyed then reply[#reply + 1] = grant.key end
return reply
