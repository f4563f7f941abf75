-- status: the state of the semaphore, from one read.
--
-- KEYS     as in the head
-- ARGV     max_entries  how many holders, how many waiters and how many keys to list at most
--          [after]      the key after which to list keys, '' to begin; only where there are keys
-- RETURNS  {tag, set limit or -1 as in an acquire's reply, permits in use, requests waiting, now_us,
--          usual hold or -1, holders, queue, hubs}: holders is id, ms left, token, permits ...; queue
--          is the entries of list_queue(); hubs is hub, facts about it ... for the hubs that occur.
--          With keys, also key, permits in use, requests waiting, set limit or -1 ... of keys that
--          hold or wait; the key of each holder in the list; and {1 if a request waits that only
--          the overall limit delays, how many limits of keys are set}. With slots, also {the list
--          of slots, slots of each holder in the list}
-- USES     load_state, exact, now, extra_permits, permits_of, list_queue, set_limit, now_us,
--          keyed, slotted, usual_hold, with_back_off, fields

local max_entries = tonumber(ARGV[5])

load_state()
local in_use = call('ZCOUNT', holders, '(' .. exact(now), '+inf') + extra_permits()

local held, seen, owners = {}, {}, {}
local function list_owner(owner)
  if not seen[owner] then
    seen[owner] = true
    owners[#owners + 1] = owner
    owners[#owners + 1] = call('HGET', meta, owner .. ':client') or ''
  end
end
if max_entries > 0 then
  local live = call('ZRANGEBYSCORE', holders, '(' .. exact(now), '+inf', 'WITHSCORES',
    'LIMIT', 0, max_entries)
  for i = 1, #live, 2 do
    local id = live[i]
    held[#held + 1] = id
    held[#held + 1] = live[i + 1] - now
    held[#held + 1] = call('HGET', tokens, id) or '0'
    held[#held + 1] = exact(permits_of(id))
    list_owner(string.match(id, '^%x+'))
  end
end
local waits, entries = list_queue(max_entries)
for i = 1, #entries, 2 do list_owner(string.match(entries[i], '^%x+')) end
local reply = {
  tag, with_back_off(set_limit or -1, fields[7]), in_use, waits, now_us, usual_hold,
  held, entries, owners,
}
if keyed then
  reply[10] = keyed.list(max_entries, ARGV[6])
  reply[11] = {}
  for i = 1, #held, 4 do reply[11][(i + 3) / 4] = keyed.key_of(held[i]) end
  reply[12] = { keyed.queue_is_blocked() and 1 or 0, keyed.limits_set() }
end
if slotted then reply[#reply + 1] = slotted.list(held) end
return reply
