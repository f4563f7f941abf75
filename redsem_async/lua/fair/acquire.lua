-- acquire (fair): grant what fits when the line is empty, queue the rest by ticket.
--
-- The ancestor is the fair semaphore of Redis in Action, 6.3, which ranks owners by a counter. This
-- is one script, so nothing happens between drawing a ticket and ranking it; a script that fails
-- leaves no entry behind; and no client's timeout is applied to another client's entries.
--
-- KEYS     as in the head
-- ARGV     lease_ms     lease of these requests
--          declared     the caller's own limit, which a set limit overrides
--          max_waiters  length of the line from which on requests are refused, -1 for no bound
--          after        highest number of the batch before this one: it has not run unless the
--                       hub's mark is as high
--          hub_info     facts about the caller's hub, '' when sent before
--          no_push      '1' when no push message reaches the hub
--          right        'ms:limit' to ask for the right to reuse leases, '' not to
--          requests     from here on: 'number', or 'number:permits:waits' (waits 0 or 1)
-- RETURNS  {tag, next_ms, waiting, own_grants, set_limit, answer...}, set_limit being -1 when no
--          limit is set, and an answer a token (granted),
--          {token, ms left} (holds a permit already), 0 (in line), -1 (gone: its number was used
--          before, and it neither holds nor waits), -2 (no room, and it does not wait),
--          -3 (the line is too long); and where the right was asked for, 1 or 0 after these;
--          the error REORDERED when the batch before has not run: it then changes nothing
-- USES     load_state, unknown_hub, unknown_hub_error, mark, parse_requests, record_hub,
--          detect_lost_holders, purge, leave_line, serve, set_limit, current_grant, in_line,
--          format_request, grace, now, next_token, last, write_grants, keep, liveness_timeout,
--          save_counter, recall_rights, answer_right, others_wait, append, reply_with_limit
--          sets open, used, waiting

local lease, declared, max_waiters = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local after, hub_info, no_push = tonumber(ARGV[8]), ARGV[9], ARGV[10]
local right = ARGV[11]
local REQUESTS = 12

load_state()
if unknown_hub and hub_info == '' then return unknown_hub_error() end
if mark < after then return redis.error_reply('REORDERED') end
local old_mark = mark
local requests = parse_requests(REQUESTS)
-- Redis refuses this write at maxmemory, and it is the first: the acquire fails with nothing
-- written.
call('HSET', meta, 'mode', mode, hub, mark)
record_hub(hub_info, no_push, lease)
detect_lost_holders(lease)
purge()
if unknown_hub and waiting > 0 then
  -- The line may still have these requests, if the hub was forgotten since: they ask anew.
  local older = {}
  for i, request in ipairs(requests) do
    older[i] = format_request(request[1], ARGV[5], declared, request[3])
  end
  leave_line(older)
end
serve()

local effective_limit = set_limit or tonumber(declared)
local answers, grants, queued, served = {}, {}, {}, true
for i, request in ipairs(requests) do
  local number, value, permits, waits = unpack(request)
  local id = hub .. '.' .. number
  if value <= old_mark then
    answers[i] = current_grant(id)
      or (in_line(format_request(number, ARGV[5], declared, permits)) and 0)
      or -1
    served = served and answers[i] ~= 0
  elseif open and grace <= now and used + permits <= effective_limit then
    used = used + permits
    grants[#grants + 1] = { id, next_token(), lease, permits }
    answers[i] = last
  elseif not waits then
    answers[i], served = -2, false
  elseif max_waiters >= 0 and waiting >= max_waiters then
    answers[i], served = -3, false
  else
    served = false
    queued[#queued + 1] = next_token()
    queued[#queued + 1] = format_request(number, ARGV[5], declared, permits)
    waiting = waiting + 1
    answers[i] = 0
    if permits <= effective_limit then open = false end
  end
end
write_grants(grants)
if #queued > 0 then
  call('ZADD', line, unpack(queued))
  keep(line, liveness_timeout(lease))
  save_counter(liveness_timeout(lease))
end
if not served then recall_rights() end
if right ~= '' then answers[#answers + 1] = answer_right(right, others_wait()) end
return append(reply_with_limit(), answers)
