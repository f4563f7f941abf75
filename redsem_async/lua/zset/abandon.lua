-- abandon (zset): give back grants that were never heard of.
--
-- KEYS     as in the head
-- ARGV     void     number of a call that acts once, and may not act any more; 0 for none
--          numbers  from here on: of ids of the caller's own hub
-- RETURNS  {tag, next_ms, waiting, mine, answer...}, an answer being 2 (gave a permit back)
--          or 0 (nothing was there)

local void = tonumber(ARGV[5])
local NUMBERS = 6

survey()
local ids, answers, highest = {}, {}, 0
for i = NUMBERS, #ARGV do
  ids[#ids + 1] = hub .. '.' .. ARGV[i]
  highest = math.max(highest, tonumber(ARGV[i]))
end
if #ids > 0 then
  for i, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
    answers[i] = expiry and tonumber(expiry) > now and 2 or 0
  end
  freed = freed + drop(ids)
  raise_mark(highest)
end
if void > 0 and not acted(void) then
  call('ZREM', holders, '')  -- a removal first: what follows is let through at maxmemory
  note_call(void)
end
if waiting > 0 then
  purge()
  serve()
end

local reply = standing()
for i = 1, #answers do reply[4 + i] = answers[i] end
return reply
