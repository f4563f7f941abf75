-- release: give permits back and serve who waits.
--
-- KEYS     as in the head
-- ARGV     owner    the hub that the ids belong to; it is told when that is not the caller
--          retaken  permits that the caller takes again itself, in the same write (zset)
--          numbers  from here on: of the ids
-- RETURNS  {tag, next_ms, waiting, own_grants, held...}, held being 1, or 0 when it was not;
--          the error STRANGER from a client that recovers from losses: see introduce()

local owner, retaken = ARGV[5], tonumber(ARGV[6])
local NUMBERS = 7

load_state()
if released and unknown_hub then return unknown_hub_error() end  -- state was lost: that goes first
local ids, held, removed, seen, highest = {}, {}, {}, {}, 0
for i = NUMBERS, #ARGV do
  ids[#ids + 1] = owner .. '.' .. ARGV[i]
  highest = math.max(highest, tonumber(ARGV[i]))
end
for i, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
  -- Released twice in one call, the second finds nothing.
  held[i] = expiry and tonumber(expiry) > now and not seen[ids[i]] and 1 or 0
  seen[ids[i]] = true
  if held[i] == 1 then removed[#removed + 1] = ARGV[NUMBERS + i - 1] end
end
-- A removal first: what follows is let through at maxmemory.
freed = freed + remove_holders(ids)
forbid_restore(ids)
if owner == hub then
  raise_mark(highest)
elseif #removed > 0 then
  publish_to(owner, 'gone', table.concat(removed, ','))
end
if waiting > 0 then
  purge()
  freed, used = math.max(0, freed - retaken), used + retaken
  serve(retaken > 0)
end

local reply = reply_head()
for i = 1, #held do reply[4 + i] = held[i] end
return reply
