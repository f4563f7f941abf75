-- abandon: the caller gives requests up. Each leaves the queue, or gives its permits back.
--
-- The caller may not know which: the reply that granted a request may have been lost.
--
-- KEYS     as in the head
-- ARGV     void      number of an adoption or a detach that must not run any more; 0 for none
--          change    the same of a change
--          requests  from here on: 'number:lease_ms:limit:permits', of requests of the caller's hub
-- RETURNS  {tag, next_ms, waiting, own_grants, answer...}, an answer being 1 (left the queue),
--          2 (gave its permits back) or 0 (was neither queued nor a holder)
-- USES     load_state, parse_ids, now, is_queued, remove_holders, leave_queue, raise_mark,
--          already_ran, allow_writes_at_maxmemory, note_call, waiting, purge, serve, append,
--          reply_head

local void, change = tonumber(ARGV[5]), tonumber(ARGV[6])
local REQUESTS = 7

load_state()
local ids, highest = parse_ids(hub, REQUESTS)
local answers = {}
if #ids > 0 then
  local requests = {}
  for i = 1, #ids do requests[i] = hub .. '.' .. ARGV[REQUESTS + i - 1] end
  for i, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
    local held = expiry and tonumber(expiry) > now
    answers[i] = held and 2 or is_queued(requests[i]) and 1 or 0
  end
  remove_holders(ids)
  leave_queue(requests)
  raise_mark(highest)
end
if void > 0 and not already_ran(void, 'calls') then
  allow_writes_at_maxmemory()
  note_call(void, 'calls')
end
if change > 0 and not already_ran(change, 'changes') then
  allow_writes_at_maxmemory()
  note_call(change, 'changes')
end
if waiting > 0 then
  purge()
  serve()
end
return append(reply_head(), answers)
