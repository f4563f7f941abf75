-- abandon: the caller gives requests up. Each leaves the queue, or gives its permits back.
--
-- The caller may not know which: the reply that granted a request may have been lost.
--
-- ARGV     void      number of an adoption or a detach that must not run any more; 0 for none
--          change    the same of a change
--          requests  from here on: 'number:lease_ms:limit:permits', of requests of the caller's hub
-- RETURNS  {tag, next_ms, waiting, own_grants, answer...}, an answer being 1 (left the queue),
--          2 (gave its permits back) or 0 (was neither queued nor a holder)
--
-- uses: holders (allow_writes_at_maxmemory append grant_of load_state parse_ids purge
--       remove_holders), hubs (already_ran note_call raise_mark), queue (ticket_of), order
--       (leave_queue), serve (reply_head serve)

local void, change = tonumber(ARGV[5]), tonumber(ARGV[6])
local REQUESTS = 7

load_state()
local ids, highest = parse_ids(hub, REQUESTS)
local answers, holding, queued = {}, {}, {}
allow_writes_at_maxmemory()
for i, expiry in ipairs(ids[1] and call('ZMSCORE', holders, unpack(ids)) or {}) do
  local request = hub .. '.' .. ARGV[REQUESTS + i - 1]
  answers[i] = 0
  if expiry then
    holding[#holding + 1] = ids[i]
    if tonumber(expiry) > now then answers[i] = 2 end
    -- What an adoption took over was charged to others, and it names no costs.
    local costs = rated and string.match(request, '^[^:]*:%d+:%d+:%d+:([%d/+]+)')
    local grant = costs and grant_of(ids[i])
    if grant then rated.spend(costs, -1, grant.token) end
  elseif ticket_of(request) then
    queued[#queued + 1] = request
    answers[i] = 1
  end
end
if #holding > 0 then
  remove_holders(holding)
  if rated then rated.save(0) end
end
leave_queue(queued)
raise_mark(highest)
if void > 0 and not already_ran(void, 'calls') then note_call(void, 'calls') end
if change > 0 and not already_ran(change, 'changes') then note_call(change, 'changes') end
if state.waiting > 0 then
  purge()
  serve()
end
return append(reply_head(), answers)
