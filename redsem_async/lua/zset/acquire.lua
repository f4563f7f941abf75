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
--          hub_info  facts about the caller's hub, '' when sent before
--          no_push   '1' when no push message reaches the hub
--          requests  from here on: 'number', or 'number:permits:waits' (waits 0 or 1)
-- RETURNS  {tag, next_ms, waiting, own_grants, room, answer...}, an answer being a token (granted),
--          {token, ms left} (held already), -1 (gone: used before, and ended) or -2 (full);
--          room is how many permits are left

local lease, declared, hinted = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[8])
local waits, highest = parse_waits(ARGV[7])
local hub_info, no_push = ARGV[9], ARGV[10]
local REQUESTS = 11

load_state()
if unknown_hub and hub_info == '' then return unknown_hub_error() end
local old_mark = mark
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
record_hub(hub_info, no_push, lease)
keep_hub_alive(lease)
detect_lost_holders(lease)
purge()

local effective_limit = set_limit or declared
local answers, grants, granted = {}, {}, 0
for i, request in ipairs(batch) do
  local number, value, permits, stays = unpack(request)
  local id = hub .. '.' .. number
  if value <= old_mark then
    answers[i] = current_grant(id) or -1
  elseif grace <= now and used + permits <= effective_limit then
    used = used + permits
    granted = granted + permits
    grants[#grants + 1] = { id, next_token(), lease, permits }
    answers[i] = last
  else
    answers[i] = -2
    if stays then waits = waits + 1 end
  end
end
write_grants(grants)
local passes_hint = freed == 0
freed = math.max(0, freed + hinted - granted)
if mark > old_mark then announce(waits, math.max(highest, declared), lease) end
serve(false, true, passes_hint)

local reply = reply_head()
reply[5] = grace <= now and effective_limit - used or 0
for i = 1, #answers do reply[5 + i] = answers[i] end
return reply
