-- abandon (fair): waiters give up. They leave the line, or give back a grant never heard of.
--
-- KEYS     as in the head
-- ARGV     void      number of a call that acts once, and may not act any more; 0 for none
--          requests  from here on: 'number:lease_ms:limit:permits', of the caller's own hub
-- RETURNS  {tag, next_ms, waiting, own_grants, answer...}, an answer being 1 (left the line),
--          2 (gave a permit back) or 0 (nothing was there)

local void = tonumber(ARGV[5])
local REQUESTS = 6

load_state()
local requests, ids, answers, highest = {}, {}, {}, 0
for i = REQUESTS, #ARGV do
  local number = string.match(ARGV[i], '^%d+')
  requests[#requests + 1] = hub .. '.' .. ARGV[i]
  ids[#ids + 1] = hub .. '.' .. number
  highest = math.max(highest, tonumber(number))
end
if #ids > 0 then
  for i, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
    local held = expiry and tonumber(expiry) > now
    answers[i] = held and 2 or call('ZSCORE', line, requests[i]) and 1 or 0
  end
  freed = freed + remove_holders(ids)
  call('ZREM', line, unpack(requests))
  waiting = call('ZCARD', line)
  raise_mark(highest)
end
if void > 0 and not already_ran(void) then
  call('ZREM', holders, '')  -- a removal first: what follows is let through at maxmemory
  note_call(void)
end
if waiting > 0 then
  purge()
  serve()
end

local reply = reply_head()
for i = 1, #answers do reply[4 + i] = answers[i] end
return reply
