-- abandon (zset): give back grants that were never heard of.
--
-- KEYS     as in the head
-- ARGV     void     number of a call that acts once, and may not act any more; 0 for none
--          numbers  from here on: of ids of the caller's own hub
-- RETURNS  {tag, next_ms, waiting, own_grants, answer...}, an answer being 2 (gave a permit back)
--          or 0 (nothing was there)

local void = tonumber(ARGV[5])
local NUMBERS = 6

load_state()
local ids, answers, highest = {}, {}, 0
for i = NUMBERS, #ARGV do
  ids[#ids + 1] = hub .. '.' .. ARGV[i]
  highest = math.max(highest, tonumber(ARGV[i]))
end
if #ids > 0 then
  for i, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
    answers[i] = expiry and tonumber(expiry) > now and 2 or 0
  end
  freed = freed + remove_holders(ids)
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
