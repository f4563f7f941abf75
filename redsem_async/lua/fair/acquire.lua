-- acquire (fair): grant what fits when nobody waits, queue the rest by ticket.
--
-- The ancestor is the fair semaphore of Redis in Action, 6.3: owners ranked by a counter.
-- Being one script it has no window between drawing a ticket and ranking it, leaves no entry
-- behind when it fails, and applies nobody's timeout to others.
--
-- KEYS     as in the head
-- ARGV     lease_ms     lease of these requests
--          declared     the caller's own limit, ruled out by a set limit
--          max_waiters  longest line to join, -1 for any
--          after        the batch before this one: it has not run unless the mark is as high
--          hub_info     facts about the caller's hub, '' when sent before
--          no_push      '1' when no push message reaches the hub
--          requests     from here on: 'number', or 'number:permits:waits' (waits 0 or 1)
-- RETURNS  {tag, next_ms, waiting, own_grants, answer...}, an answer being a token (granted),
--          {token, ms left} (held already), 0 (waits), -1 (gone: used before, and ended),
--          -2 (full, does not wait), -3 (the line is too long);
--          the error REORDERED when the batch before it has not run: nothing is done

local lease, declared, max_waiters = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local after, hub_info, no_push = tonumber(ARGV[8]), ARGV[9], ARGV[10]
local REQUESTS = 11

load_state()
if unknown_hub and hub_info == '' then return unknown_hub_error() end
if mark < after then return redis.error_reply('REORDERED') end
local old_mark = mark
local batch = {}
for i = REQUESTS, #ARGV do
  local number, permits, waits = ARGV[i], '1', '1'
  if not tonumber(number) then
    number, permits, waits = string.match(number, '^(%d+):(%d+):([01])$')
  end
  batch[#batch + 1] = { number, tonumber(number), tonumber(permits), waits == '1' }
  mark = math.max(mark, tonumber(number))
end
-- The first write is one that is refused at maxmemory: an acquire fails with nothing written.
call('HSET', meta, 'mode', mode, hub, mark)
record_hub(hub_info, no_push, lease)
keep_hub_alive(lease)
detect_lost_holders(lease)
purge()
serve()

local effective_limit = set_limit or tonumber(declared)
local answers, grants, queued = {}, {}, {}
for i, request in ipairs(batch) do
  local number, value, permits, waits = unpack(request)
  local id = hub .. '.' .. number
  if value <= old_mark then
    answers[i] = current_grant(id)
      or (call('ZSCORE', line, format_request(number, ARGV[5], declared, permits)) and 0)
      or -1
  elseif open and grace <= now and used + permits <= effective_limit then
    used = used + permits
    grants[#grants + 1] = { id, next_token(), lease, permits }
    answers[i] = last
  elseif not waits then
    answers[i] = -2
  elseif max_waiters >= 0 and waiting >= max_waiters then
    answers[i] = -3
  else
    queued[#queued + 1] = next_token()
    queued[#queued + 1] = format_request(number, ARGV[5], declared, permits)
    waiting = waiting + 1
    answers[i] = 0
    if permits <= effective_limit then open = false end
  end
end
write_grants(grants)
if #queued > 0 then
  -- A request of a hub that was forgotten since may be there: it has a new ticket, and is one.
  waiting = waiting - #queued / 2 + call('ZADD', line, unpack(queued))
  keep(line, liveness_timeout(lease))
  save_counter(liveness_timeout(lease))
end

local reply = reply_head()
for i = 1, #answers do reply[4 + i] = answers[i] end
return reply
