-- adopt: move a held permit from its old id to a new id of the adopter's hub.
--
-- The old id holds nothing afterwards, so a job that is delivered twice cannot run twice under one
-- permit. The fencing token stays the same.
--
-- KEYS     as in the head
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
--          changes nothing. An id whose key or slots were lost counts as holding nothing: its
--          adopter could not tell them
-- USES     load_state, unknown_hub, unknown_hub_error, allow_writes_at_maxmemory, current_grant,
--          already_ran, record_hub, note_call, permits_of, remove_holders,
--          write_grants, publish_to, held_for, append, keyed, slotted

local lease, hub_info, no_push = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local owner, old, new, number = ARGV[8], ARGV[9], ARGV[10], tonumber(ARGV[11])
local max_hold = tonumber(ARGV[12] or '')
local old_id, new_id = owner .. '.' .. old, hub .. '.' .. new

load_state()
if unknown_hub and hub_info == '' then return unknown_hub_error() end
local _, refusal
if slotted then _, refusal = slotted.compare(ARGV[13], old_id) end
if refusal then return refusal end
allow_writes_at_maxmemory()
local grant = current_grant(new_id)
if not grant and already_ran(number, 'calls') then return redis.error_reply('VOID') end
record_hub(hub_info, no_push, lease)
if not grant then
  note_call(number, 'calls')
  grant = current_grant(old_id)
  -- Where its slots were lost, a new id would have none, and others would get them.
  if not grant or slotted and grant[3] == '' or keyed and keyed.lost(old_id) then
    return { tag, -1 }
  end
  local permits, tail = permits_of(old_id), keyed and keyed.tail_of(old_id)
  local its_slots = grant[3]
  if slotted then slotted.claim(new_id, its_slots) end
  if max_hold then lease = math.min(lease, max_hold - held_for(grant[1])) end
  grant[2] = math.max(grant[2], lease)
  -- The old holder leaves afterwards, because a key that holds nothing loses its virtual time.
  write_grants({ { new_id, tonumber(grant[1]), grant[2], permits, tail } })
  remove_holders({ old_id })
  if owner ~= hub then publish_to(owner, 'revoked', old) end
end
if keyed and keyed.lost(new_id) or slotted and slotted.lost(new_id) then return { tag, -1 } end
local held = { grant[1], grant[2], permits_of(new_id) }
if max_hold then held[4] = held_for(grant[1]) end
if slotted then held[#held + 1] = slotted.of(new_id) end
if keyed then held[#held + 1] = keyed.key_of(new_id) end
return append({ tag }, held)
