-- release: give permits back and serve who waits.
--
-- KEYS     as in the head
-- ARGV     owner    the hub that the ids belong to; it is told when that is not the caller
--          keep     permits that the caller takes again itself, in the same write (zset)
--          numbers  from here on: of the ids
-- RETURNS  {tag, next_ms, waiting, mine, held...}, held being 1, or 0 when it was not;
--          the error STRANGER from a client that recovers from losses: see introduce()

local owner, kept = ARGV[5], tonumber(ARGV[6])
local NUMBERS = 7

survey()
if released and stranger then return who_are_you() end  -- state was lost: that goes first
local ids, held, told, seen, highest = {}, {}, {}, {}, 0
for i = NUMBERS, #ARGV do
  ids[#ids + 1] = owner .. '.' .. ARGV[i]
  highest = math.max(highest, tonumber(ARGV[i]))
end
for i, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
  -- Released twice in one call, the second finds nothing.
  held[i] = expiry and tonumber(expiry) > now and not seen[ids[i]] and 1 or 0
  seen[ids[i]] = true
  if held[i] == 1 then told[#told + 1] = ARGV[NUMBERS + i - 1] end
end
-- A removal first: what follows is let through at maxmemory.
freed = freed + drop(ids)
bar(ids)
if owner == hub then
  raise_mark(highest)
elseif #told > 0 then
  tell(owner, 'gone', table.concat(told, ','))
end
if waiting > 0 then
  purge()
  freed, used = math.max(0, freed - kept), used + kept
  serve(kept > 0)
end

local reply = standing()
for i = 1, #held do reply[4 + i] = held[i] end
return reply
