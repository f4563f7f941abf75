-- keyed_order: whose turn it is, where requests have keys: see keyed.lua.

local MAX_LOOKED = 200  -- lines that one call looks at anew

local function line_text(request, ticket)
  return request.key .. '!' .. padded(ticket) .. ':' .. request.text
end
-- Removes *requests* from the queue.
local function leave_queue(requests)
  local changed, texts = {}, {}
  if #requests == 0 then return end
  for i, ticket in ipairs(call('ZMSCORE', queue, unpack(requests))) do
    if ticket then
      local request = parse_request(requests[i])
      texts[#texts + 1] = line_text(request, ticket)
      changed[request.key] = true
    end
  end
  if #texts > 0 then call('ZREM', lines, unpack(texts)) end
  state.waiting = state.waiting - call('ZREM', queue, unpack(requests))
  if state.waiting == 0 then call('UNLINK', ready, turns or ready) end
  look_at_all(changed)
end
local function keep_queue(need)
  for _, key in ipairs({ queue, lines, ready, uses, turns }) do keep(key, need) end
end
-- Adds *entries*, ticket and request in turn, to the queue, for at least *need* ms.
local function join_queue(entries, need)
  local changed, texts = {}, {}
  for i = 1, #entries, 2 do
    local request = parse_request(entries[i + 1])
    texts[i], texts[i + 1] = 0, line_text(request, entries[i])
    if not changed[request.key] then call('ZADD', uses, use_of(request.key), request.key) end
    if padded(entries[i]) <= passed_of(request.key) then forget_passed(request.key) end
    changed[request.key] = true
  end
  if state.waiting == 0 then
    call('UNLINK', ready, turns or ready)
    call('ZADD', ready, 'inf', '!')
    note('ready_for', keyed.limit_in_force)
    keyed.look_from = nil
  end
  state.waiting = state.waiting + call('ZADD', queue, unpack(entries))
  call('ZADD', lines, unpack(texts))
  look_at_all(changed)
  keep_queue(need)
end

-- The queue and what is kept for it differ, because one was lost.
local function drop_queue()
  call('UNLINK', queue, lines, ready, turns or ready)
  state.waiting = 0
end

function keyed.load_state()
  state.key_back_offs = key_back_offs
  local count = call('HLEN', key_limits)
  keyed.limit_in_force = limit_in_force() .. (count > 0 and '/' .. exact(count) or '')
  local of, after = string.match(call('HGET', meta, 'ready_for') or '', '^(%S+) ?(.*)$')
  local ready_count = call('ZCARD', ready)
  local turn_count = shares and call('ZCARD', turns) or ready_count - 1
  local is_right = of == keyed.limit_in_force and ready_count > 0 and turn_count == ready_count - 1
  keyed.look_from = nil
  if state.waiting > 0 then keyed.look_from = not is_right and '*' or after ~= '' and after or nil end
  keyed.ramps_lost = call('ZCARD', ramps) == 0
  keyed.queue_lost = call('ZCARD', lines) ~= state.waiting
  local is_used = call('ZCOUNT', uses, '(0', '+inf') > 0
  if is_used ~= (state.holding > 0) and not state.facts_lost
      or not is_used and state.waiting > 0 and call('EXISTS', uses) == 0 then
    state.doubtful = true
  end
end
-- Looks at all lines anew, where that is due; some in each call. Returns whether it is done.
local function look_at_lines()
  local from = keyed.look_from
  if not from then return true end
  if from == '*' then
    call('HDEL', meta, 'ready_for')  -- until it is right
    call('UNLINK', ready, turns or ready)
    call('ZADD', ready, 'inf', '!')
    keep(ready, SLACK)
    keyed.look_from = ''
  end
  for _ = 1, MAX_LOOKED do
    local after = from == '*' and '-' or '(' .. from .. '"'
    local text = call('ZRANGEBYLEX', lines, after, '+', 'LIMIT', 0, 1)[1]
    if not text then
      keyed.look_from = nil
      note('ready_for', keyed.limit_in_force)
      return true
    end
    from = string.match(text, '^[^!]*')
    call('ZADD', uses, use_of(from), from)
    keep(uses, SLACK)
    look_at(from)
  end
  keyed.look_from = from
  note('ready_for', keyed.limit_in_force .. ' ' .. from)
end

-- The ready key whose turn it is.
local function next_key()
  local first = call('ZRANGE', ready, 0, 0, 'WITHSCORES')
  if not first[1] or first[1] == '!' then return end
  if not shares or now_us > tonumber(first[2]) then return first[1] end
  return key_in(call('ZRANGE', turns, 0, 0)[1])
end
-- The request that is served next, which is still in the queue; or nil.
local function next_request()
  -- Before all requests of dead hubs are dropped, one may stand in the way of its key.
  if not look_at_lines() or string.find(state.looked or '', ':', 1, true) then return stop_early() end
  for _ = 1, MAX_LOOKED do
    local key = next_key()
    if not key then return end
    local request, ticket = head_of(key)
    if not request then
      look_at(key)
      if ticket then return stop_early() end
    elseif hub_state(request.owner).alive_until > now then
      return may_be_next(request) and request or nil
    else
      leave_queue({ request.text })
    end
  end
  return stop_early()
end
local function start_over() end
-- No request passes an older one because its hub releases.
local function own_requests()
  return {}
end

-- Of keys of which this call queues requests: what holds up the next one, and how many are queued.
local blocked, queued_of = {}, {}

-- What a new *request* has to wait for: 'limit', 'key', 'rate', or nothing.
local function held_up(permits, most, request)
  local key = request.key
  if blocked[key] then return blocked[key] end
  local head, unread = nil, nil
  if state.waiting > 0 then head, unread = head_of(key) end
  if head and not is_ready(key) or unread and not head then return key == '' and 'limit' or 'key' end
  if not fits_key(key, permits, request.key_limit) then return 'key' end
  if state.blocked_until or state.used + permits > room_in(most, state.used, state.ramp) then
    return 'limit'
  end
  if rated and rated.lets_at(request.costs) then return 'rate' end
  if key ~= '' then keyed.advance(request) end  -- one without a key has waited for no turn
end
-- *request* is queued at the end of the call, because of *by*.
function keyed.queued(request, by, too_heavy)
  local key = request.key
  if not too_heavy then blocked[key] = blocked[key] or by end
  queued_of[key] = (queued_of[key] or 0) + 1
end
function keyed.none_queued()
  queued_of = {}
end
local function queue_is_full(max_waiters, queued, request)
  local most, most_of_key = string.match(max_waiters, '^(-?%d+):?(%d*)$')
  most, most_of_key = tonumber(most), tonumber(most_of_key)
  if most >= 0 and state.waiting + queued >= most then return -3 end
  local key = request.key
  return most_of_key and key ~= '' and waits_of(key) + (queued_of[key] or 0) >= most_of_key and -6
end
local function queue_answer(text)
  return is_ready(key_in(text)) and 0 or -4
end
-- Drops a queue that is lost in part, and looks at keys whose ramp has changed. While keys have
-- back-offs, empty ramps were lost, and are made anew from meta.
function keyed.follow_ramps()
  if keyed.queue_lost then drop_queue() end
  if not state.key_back_offs then return end
  local fields = keyed.ramps_lost and call('HGETALL', meta) or {}
  for i = 1, #fields, 2 do
    local key = string.match(fields[i], '^back_off:(.*)$')
    if key then keyed.set_back_off(key, fields[i + 1]) end
  end
  local due = call('ZRANGEBYSCORE', ramps, '-inf', now, 'LIMIT', 0, MAX_PURGED)
  state.more = state.more or #due == MAX_PURGED
  for _, key in ipairs(due) do keyed.set_back_off(key, keyed.back_off_of(key)) end
  local first = call('ZRANGE', ramps, 0, 0, 'WITHSCORES')
  keyed.ramps_change = tonumber(first[2])
  if not first[1] then
    call('HDEL', meta, 'key_back_offs')
    state.key_back_offs = nil
  end
end

-- Looks at the keys of the requests that ARGV names from position *first* on: a call that failed half-way
-- may have left one out of `ready`.
function keyed.look_again(first)
  local seen = {}
  for i = first, state.waiting > 0 and #ARGV or 0 do
    local key = key_in(ARGV[i])
    if not seen[key] and not is_ready(key) then look_at(key) end
    seen[key] = true
  end
end

-- What a reply says of the keys of those requests, which ARGV names from position *first* on, that
-- are not served, as *answers* say: how many keys are ready; then key, how many of its requests wait,
-- and the limit that is set for it or -1, ...
function keyed.queues_of(first, answers)
  local queues, seen = {}, { [''] = true }
  for i = first, #ARGV do
    local key = string.find(ARGV[i], ':', 1, true) and key_in(ARGV[i]) or ''
    local answer = answers[i - first + 1]
    if not seen[key] and (answer == 0 or type(answer) == 'number' and answer < -1) then
      seen[key] = true
      if #queues == 0 then queues[1] = math.max(0, call('ZCARD', ready) - 1) end
      append(queues, { key, waits_of(key), with_back_off(limit_of(key, -1), keyed.back_off_of(key)) })
    end
  end
  return queues
end
