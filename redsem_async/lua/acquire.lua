-- acquire: grant what fits and may not wait behind others, queue the rest by ticket.
--
-- The ancestors are the semaphores of Redis in Action, 6.3: the counting semaphore, which keeps owners
-- in a sorted set (zset), and the fair one, which ranks them by a counter (fair). This is one script,
-- so nothing happens between drawing a ticket and ranking it; a script that fails leaves no entry
-- behind; holders are ranked by one clock; and no client's timeout is applied to others' entries.
--
-- ARGV     lease_ms     lease of these requests
--          declared     the caller's own limit, which a set limit overrides; where permits have
--                       slots, 'limit:slot,slot,...'
--          max_waiters  length of the queue from which on requests are refused, -1 for no bound;
--                       with keys also ':' and the same for the line of a key
--          after        highest number of the batch before this one: it has not run unless the
--                       hub's mark is as high. Where a request has waited before, also ':' and the
--                       caller's clock in us
--          hub_info     facts about the caller's hub, '' when sent before
--          no_push      '1' when no push message reaches the hub, '2' when nobody counts it
--          requests     from here on: 'number', or 'number:permits:waits:ahead' and the tail of a
--                       request; none to learn whether Redis takes writes. waits is 0 for one that
--                       may not wait, 1 for one that may, 2 for one that has waited before, which
--                       max_waiters does not refuse. Its ticket is as low as that of a request
--                       which came *ahead* ms earlier, and with 2 of one which came at the moment
--                       *ahead* of the caller's clock
-- RETURNS  {tag, next_ms, waiting, own_grants, set_limit, hold, answer...}, and before the answers
--          keyed.queues_of() where there are keys, and rated.backlog() where there are rates;
--          set_limit being -1 when no limit is set, -2 when nothing was known of the hub either, and
--          {set_limit, ms, ramp} from with_back_off() during a back-off; hold being the usual hold
--          in ms times permits, -1 when it is not known or all were granted; and an answer being a
--          token (granted), {token, ms left} (holds a permit already), 0 (queued), -4 (queued, and
--          its key holds it up), -1 (gone: its number was used before, and it neither holds nor
--          waits), -2 (no room, and it does not wait), -5 (the same, because of its key), -3 (the
--          queue is too long), -6 (that of its key is);
--          the error REORDERED when the batch before has not run: it then changes nothing
--
-- uses: holders (append exact holding_of limit_for load_state next_expiry next_token note occupy
--       purge save_counter write_grants), hubs (record_hub unknown_hub_error), queue
--       (format_request parse_request ticket_of), order (held_up join_queue leave_queue
--       queue_answer queue_is_full start_over), serve (notify_head own_grants reply_with_limit
--       serve)

local lease, declared, max_waiters = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local after, their_us = string.match(ARGV[8], '^(%d+):?(%d*)$')
local hub_info, no_push = ARGV[9], ARGV[10]
local REQUESTS = 11
local fair = string.find(mode, 'fair', 1, true)

load_state()
if not known and hub_info == '' then return unknown_hub_error() end
if state.mark < tonumber(after) then return redis.error_reply('REORDERED') end
local listed
if slotted then declared, listed = slotted.compare(declared) end
if not declared then return listed end

local old_mark, requests = state.mark, {}
local forgotten = not known or old_mark == 0  -- what is known of this hub may have been lost
for i = REQUESTS, #ARGV do
  local number, permits, waits, ahead, tail =
    string.match(ARGV[i], '^(%d+):?(%d*):?([012]?):?(%d*)(.*)$')
  if keyed and tail == '' then tail = '::1:0:' end  -- that of a request without a key
  local request = parse_request(format_request(number, ARGV[5], declared, tonumber(permits) or 1, tail))
  request.value, request.waits = tonumber(number), waits
  request.ahead = tonumber(ahead) or 0
  requests[#requests + 1] = request
  state.mark = math.max(state.mark, request.value)
end
-- Redis refuses this write at maxmemory, and it is the first: the acquire fails with nothing
-- written.
save_counter(0, hub, state.mark)
record_hub(hub_info, no_push, lease)
if listed then note('slots', listed) end
purge()
if forgotten and state.waiting > 0 then
  -- The queue may still have these requests: they ask anew.
  local older = {}
  for i, request in ipairs(requests) do older[i] = request.text end
  leave_queue(older)
end
serve()

local most = limit_for(tonumber(declared))
local first_expiry = (keyed or not fair) and state.waiting > 0 and next_expiry()
local answers, grants, queued, served, overtakes = {}, {}, {}, true, false

-- Writes what was granted and queued so far.
local function write()
  write_grants(grants)
  if #queued > 0 then
    join_queue(queued, liveness_timeout(lease))
    save_counter(liveness_timeout(lease))
  end
  grants, queued = {}, {}
  if keyed then keyed.none_queued() end
end
-- By how many us the semaphore's clock is ahead of the caller's, as the first batch of requests that ask
-- again found it: they keep the order of their calls, however long each batch is on its way.
local function clock_offset()
  local known, present = tonumber(call('HGET', meta, hub .. ':offset')), now_us - their_us
  if known and math.abs(known - present) < STEP then return known end
  note(hub .. ':offset', exact(present))
  return present
end
local function ticket_for(request)
  local token = next_token()
  if request.waits == '2' then return exact(math.min(token, clock_offset() + request.ahead)) end
  return exact(math.max(1, token - 1000 * request.ahead))
end
-- The token of a request that may not wait, if it would be granted at once in its place in the
-- queue; nil otherwise.
local function grant_in_turn(request)
  local blocked_until = state.blocked_until  -- without this request
  write()
  join_queue({ ticket_for(request), request.text }, liveness_timeout(lease))
  start_over()
  serve()
  for i = 1, #own_grants, 2 do
    if own_grants[i] == request.value then
      table.remove(own_grants, i)
      return table.remove(own_grants, i)
    end
  end
  leave_queue({ request.text })
  state.blocked_until = blocked_until
end

-- The answer where *request* is not queued although *blocked_by* holds it up; otherwise false.
local function refusal(request, blocked_by)
  if request.waits == '0' then return blocked_by == 'key' and -5 or -2 end
  return request.waits ~= '2' and queue_is_full(max_waiters, #queued / 2, request)
end
-- Whether *request* would fit, and its place in the queue may be before those that do not.
local function may_overtake(request, blocked_by)
  local fits = state.used + request.permits <= most and not (keyed and keyed.is_full(request))
  local takes_turns = string.find(mode, '^fair%+share') and blocked_by == 'limit'
  return fits and (request.ahead > 0 or takes_turns)
end
-- Queues *request* at the end of the call, because of *blocked_by*.
local function enqueue(request, blocked_by)
  local too_heavy = request.permits > most
  append(queued, { ticket_for(request), request.text })
  overtakes = overtakes or request.ahead > 0 or may_overtake(request, blocked_by)
  if keyed then keyed.queued(request, blocked_by == 'key' and 'key' or 'limit', too_heavy) end
  if blocked_by == 'rate' then rated.next_is(request, rated.lets_at(request.costs)) end
  if fair and blocked_by ~= 'key' and not too_heavy then
    state.blocked_until = state.blocked_until or math.huge
  end
  return blocked_by == 'key' and -4 or 0
end
-- Grants, queues or refuses *request*, which is new, and returns the answer.
local function answer_to(request)
  local blocked_by = held_up(request.permits, most, request)
  if not blocked_by then
    request.token = next_token()
    occupy(request)
    grants[#grants + 1] = request
    return request.token
  end
  local refused = refusal(request, blocked_by)
  if not refused then return enqueue(request, blocked_by) end
  local is_let = not (rated and rated.lets_at(request.costs))
  local token = is_let and may_overtake(request, blocked_by) and grant_in_turn(request)
  if rated and blocked_by ~= 'key' then rated.refuse(request, blocked_by) end
  overtakes, state.refuses = overtakes or token, state.refuses or not token
  return token or refused
end

for i, request in ipairs(requests) do
  -- The request may hold a permit although the hub's mark was lost.
  local holding = (request.value <= old_mark or forgotten) and holding_of(request.id)
  if holding or request.value <= old_mark then
    answers[i] = holding or ticket_of(request.text) and queue_answer(request.text) or -1
  else
    answers[i] = answer_to(request)
  end
  served = served and (type(answers[i]) == 'table' or answers[i] > 0 or answers[i] == -1)
end
first_expiry = #grants > 0 and first_expiry
write()
-- Those that wait do not know of an expiry that is earlier than all others.
if first_expiry and (first_expiry < 0 or lease < first_expiry) then notify_head() end
if overtakes then  -- one may be the first now, and fit where that one did not
  state.blocked_until = nil
  start_over()
  serve()
elseif rated then
  rated.tell()  -- the caller's hub, with the reply
end
return append(reply_with_limit(served, keyed and keyed.queues_of(REQUESTS, answers)), answers)
