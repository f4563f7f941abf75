-- acquire (zset): grant what fits; who asks when there is room gets it.
--
-- The ancestor is the counting semaphore of Redis in Action, 6.3: owners in a sorted set.
-- Being one script it adds nobody whom it must take out again, and it ranks holders by expiry
-- on one clock, where the book's timed the acquisition on each caller's.
--
-- KEYS     as in the head
-- ARGV     lease_ms  lease of these requests
--          declared  the caller's own limit, ruled out by a set limit
--          waits     how many requests of this hub wait beside these, and its highest limit:
--                    'requests:limit', or 0 for none
--          hinted    permits that a hint told of; what is not taken is passed on
--          who       who the hub is, '' when told before
--          deaf      '1' when the hub cannot be told anything
--          requests  from here on: 'number', or 'number:permits:waits' (waits 0 or 1)
-- RETURNS  {tag, next_ms, waiting, mine, room, answer...}, an answer being a token (granted),
--          {token, ms left} (held already), -1 (gone: used before, and ended) or -2 (full);
--          room is how many permits are left

local lease, declared, hinted = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[8])
local waits, highest = waits_of(ARGV[7])
local who, deaf = ARGV[9], ARGV[10]
local REQUESTS = 11

survey()
if stranger and who == '' then return who_are_you() end
local fresh = mark
local batch = {}
for i = REQUESTS, #ARGV do
  local number, permits, stays = ARGV[i], '1', '1'
  if not tonumber(number) then
    number, permits, stays = string.match(number, '^(%d+):(%d+):([01])$')
  end
  batch[#batch + 1] = { number, tonumber(number), tonumber(permits), stays == '1' }
  mark = math.max(mark, tonumber(number))
end
-- The first write is one that is refused at maxmemory: an acquire fails with nothing written.
call('HSET', meta, 'mode', mode, hub, mark)
introduce(who, deaf, lease)
touch(lease)
look_for_holders(lease)
purge()

local most = cap or declared
local answers, grants, taken = {}, {}, 0
for i, request in ipairs(batch) do
  local number, value, permits, stays = unpack(request)
  local id = hub .. '.' .. number
  if value <= fresh then
    answers[i] = found(id) or -1
  elseif grace <= now and used + permits <= most then
    used = used + permits
    taken = taken + permits
    grants[#grants + 1] = { id, draw(), lease, permits }
    answers[i] = last
  else
    answers[i] = -2
    if stays then waits = waits + 1 end
  end
end
hold(grants)
local passes = freed == 0
freed = math.max(0, freed + hinted - taken)
if mark > fresh then announce(waits, math.max(highest, declared), lease) end
serve(false, true, passes)

local reply = standing()
reply[5] = grace <= now and most - used or 0
for i = 1, #answers do reply[5 + i] = answers[i] end
return reply
