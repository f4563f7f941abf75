-- acquire: grant what fits and may not wait behind others, queue the rest by ticket.
--
-- The ancestors are the semaphores of Redis in Action, 6.3: the counting semaphore, which keeps owners
-- in a sorted set (zset), and the fair one, which ranks them by a counter (fair). This is one script,
-- so nothing happens between drawing a ticket and ranking it; a script that fails leaves no entry
-- behind; holders are ranked by one clock; and no client's timeout is applied to others' entries.
--
-- KEYS     as in the head
-- ARGV     lease_ms     lease of these requests
--          declared     the caller's own limit, which a set limit overrides; where permits have
--                       slots, 'limit:slot,slot,...'
--          max_waiters  length of the queue from which on requests are refused, -1 for no bound
--          after        highest number of the batch before this one: it has not run unless the
--                       hub's mark is as high
--          hub_info     facts about the caller's hub, '' when sent before
--          no_push      '1' when no push message reaches the hub, '2' when nobody counts it
--          requests     from here on: 'number', or 'number:permits:waits' (waits 0 or 1), or
--                       'number:permits:waits:ahead' for a request whose ticket is as low as that
--                       of one that came so many ms earlier
-- RETURNS  {tag, next_ms, waiting, own_grants, set_limit, hold, answer...}, and where there are keys
--          keyed.queues_of() before the answers; set_limit being -1 when no limit is set, -2 when
--          nothing was known of the hub either, and {set_limit, ms, ramp} from with_back_off()
--          during a back-off; hold being the usual hold in ms times permits, -1 when it is not
--          known or all were granted; and an answer being a token (granted), {token, ms left}
--          (holds a permit already), 0 (queued), -1 (gone: its number was used before, and it
--          neither holds nor waits), -2 (no room, and it does not wait), -3 (the queue is too long);
--          the error REORDERED when the batch before has not run: it then changes nothing
-- USES     load_state, own_grants, now_us, unknown_hub, unknown_hub_error, mark, parse_requests,
--          record_hub, purge, leave_queue, serve, current_grant, is_queued, format_request,
--          next_token, last, write_grants, liveness_timeout, exact, save_counter, append,
--          reply_with_limit, held_up, join_queue, keep_queue, keyed, queue_answer, queue_is_full,
--          limit_for, slotted, LAYOUT, next_expiry, notify_head
--          sets open, used, waiting

local lease, declared, max_waiters = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local after, hub_info, no_push = tonumber(ARGV[8]), ARGV[9], ARGV[10]
local REQUESTS = 11
local fair = string.find(mode, 'fair', 1, true)

load_state()
if unknown_hub and hub_info == '' then return unknown_hub_error() end
if mark < after then return redis.error_reply('REORDERED') end
local refusal
if slotted then declared, refusal = slotted.compare(declared) end
if refusal then return refusal end
local old_mark = mark
local requests = parse_requests(REQUESTS)
-- Redis refuses this write at maxmemory, and it is the first: the acquire fails with nothing
-- written.
call('HSET', meta, 'mode', mode, 'layout', LAYOUT, hub, mark)
record_hub(hub_info, no_push, lease)
if slotted then slotted.note_list(lease) end
purge()
if unknown_hub and waiting > 0 then
  -- The queue may still have these requests, if the hub was forgotten since: they ask anew.
  local older = {}
  for i, request in ipairs(requests) do
    older[i] = format_request(request[1], ARGV[5], declared, request[3], request[6])
  end
  leave_queue(older)
end
if keyed then keyed.look_at_heads(REQUESTS) end
serve()

local effective_limit = limit_for(tonumber(declared))
local first_expiry = not fair and waiting > 0 and next_expiry()
local answers, grants, queued, served, overtakes = {}, {}, {}, true, false

-- Writes what was granted and queued so far.
local function write()
  write_grants(grants)
  if #queued > 0 then
    join_queue(queued)
    keep_queue(liveness_timeout(lease))
    save_counter(liveness_timeout(lease))
  end
  grants, queued = {}, {}
  if keyed then keyed.added = {} end
end
-- The token of a request that may not wait, if it would be granted at once in its place in the
-- queue; nil otherwise.
local function grant_in_turn(id, entry, earlier)
  write()
  join_queue({ exact(math.max(1, math.max(last + 1, now_us) - earlier)), entry })
  waiting = waiting + 1
  serve()
  for i = 1, #own_grants, 2 do
    if hub .. '.' .. exact(own_grants[i]) == id then
      table.remove(own_grants, i)
      return table.remove(own_grants, i)
    end
  end
  leave_queue({ entry })
end

for i, request in ipairs(requests) do
  local number, value, permits, waits, earlier, tail = unpack(request)
  local id = hub .. '.' .. number
  local entry = format_request(number, ARGV[5], declared, permits, tail)
  -- If the hub has been forgotten since, the request may hold a permit although its mark was lost.
  local grant = (value <= old_mark or unknown_hub) and current_grant(id)
  if grant or value <= old_mark then
    answers[i] = grant or (is_queued(entry) and queue_answer(tail)) or -1
    served = served and answers[i] ~= 0 and answers[i] ~= -4
  else
    local blocked_by = held_up(permits, effective_limit, tail)
    if not blocked_by then
      used = used + permits
      grants[#grants + 1] = { id, next_token(), lease, permits, tail }
      answers[i] = last
    else
      local refused = not waits and (blocked_by == 'key' and -5 or -2)
        or waits and queue_is_full(max_waiters, tail)
      local may_pass = used + permits <= effective_limit
        and (earlier > 0 or keyed and keyed.shares and blocked_by == 'limit')
      if refused then
        answers[i] = may_pass and grant_in_turn(id, entry, earlier) or refused
        served = served and answers[i] > 0
      else
        served = false
        queued[#queued + 1] = exact(math.max(1, next_token() - earlier))
        queued[#queued + 1] = entry
        waiting = waiting + 1
        answers[i] = blocked_by == 'key' and -4 or 0
        overtakes = overtakes or earlier > 0 or may_pass
        if keyed then
          keyed.queued(blocked_by, tail, blocked_by == 'limit' and permits > effective_limit)
        end
        if fair and blocked_by == 'limit' and permits <= effective_limit then open = false end
      end
    end
  end
end
first_expiry = #grants > 0 and first_expiry
write()
-- Those that were passed by do not know of an expiry that is earlier than all others.
if first_expiry and (first_expiry < 0 or lease < first_expiry) then notify_head() end
if overtakes then serve() end  -- one may be the first now, and fit where that one did not
return append(reply_with_limit(served, keyed and keyed.queues_of(REQUESTS, answers)), answers)
