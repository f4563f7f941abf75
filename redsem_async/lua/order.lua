-- order: whose turn it is, where requests have no keys.
--
-- Fair: a request without room blocks the requests behind it, because it would starve otherwise. One
-- that is heavier than the limit in force is passed over. Zset: each request without room is passed
-- over, and the oldest request that fits is next.
--
-- So that requests which are passed over are not read in each call, meta has what is known of them:
-- passed -> 'ticket:used:limit', where no request up to that ticket ('inf': none at all) fits while
-- so many permits or more are in use and that limit is set ('-' for none).

local passes = string.find(mode, '^zset')
local scan  -- how far next_request() has read

-- What is known of the requests that were passed over: up to which ticket, and from how many permits
-- in use on. nil where nothing is.
local function known_to_pass()
  local ticket, used, of = string.match(state.passed or '', '^(%w+):(%d+):(.*)$')
  if of == limit_in_force() then
    return ticket == 'inf' and math.huge or tonumber(ticket), tonumber(used)
  end
end
local function note_passed(ticket, used)
  ticket = ticket == math.huge and 'inf' or exact(ticket)
  local text = ticket .. ':' .. exact(used) .. ':' .. limit_in_force()
  if text ~= state.passed then note('passed', text) end
  state.passed = text
end
local function forget_passed()
  if state.passed then call('HDEL', meta, 'passed') end
  state.passed = nil
end
-- How many permits have to be in use, so that *request* does not fit.
local function fullness_for(request)
  return math.max(0, limit_for(request.declared) - request.permits + 1)
end

-- Removes *requests* from the queue.
local function leave_queue(requests)
  if #requests > 0 then state.waiting = state.waiting - call('ZREM', queue, unpack(requests)) end
end
-- Adds *entries*, ticket and request in turn, to the queue, for at least *need* ms.
local function join_queue(entries, need)
  local ticket, used = known_to_pass()
  if state.waiting == 0 then ticket, used = passes and math.huge, 0 end
  for i = 1, ticket and #entries or 0, 2 do
    local fullness = fullness_for(parse_request(entries[i + 1]))
    if passes then
      used = math.max(used, fullness)
    elseif tonumber(entries[i]) <= ticket then
      ticket = nil  -- it came with a head start, and is not to be passed over
      break
    end
  end
  if ticket then note_passed(ticket, used) else forget_passed() end
  state.waiting = state.waiting + call('ZADD', queue, unpack(entries))
  keep(queue, need)
end
local function keep_queue(need)
  keep(queue, need)
end

-- The request that is served next, which is still in the queue; or nil.
local function next_request()
  if state.set_limit == 0 then return end
  scan = scan or { rank = 0, ticket = 0, used = 0, read = 0, rows = {}, at = 1, size = 8 }
  local ticket, used = known_to_pass()
  while not scan.ended do
    if ticket and ticket > scan.ticket and used <= state.used then
      scan.ticket, scan.used = ticket, math.max(scan.used, used)
      if ticket == math.huge then break end
      scan.rank, scan.rows = call('ZCOUNT', queue, '-inf', '(' .. exact(ticket)), {}
      scan.at = 1
    end
    if scan.at > #scan.rows then
      if scan.read >= MAX_SCANNED then
        if scan.ticket > 0 then note_passed(scan.ticket, scan.used) end
        return stop_early()
      end
      local rows = call('ZRANGE', queue, scan.rank, scan.rank + scan.size - 1, 'WITHSCORES')
      scan.rows, scan.at, scan.size = rows, 1, math.min(4 * scan.size, 64)
      scan.read = scan.read + math.floor(#rows / 2)
      if #rows == 0 then break end
    end
    local request = parse_request(scan.rows[scan.at])
    local own_ticket = tonumber(scan.rows[scan.at + 1])
    local most = limit_for(request.declared)
    scan.at = scan.at + 2
    if request.permits > most or passes and state.used + request.permits > most then
      scan.rank, scan.ticket = scan.rank + 1, own_ticket
      scan.used = math.max(scan.used, fullness_for(request))
      state.counter = math.max(state.counter, own_ticket)  -- the counter may have been lost
    elseif hub_state(request.owner).alive_until <= now then
      leave_queue({ request.text })
    else
      if may_be_next(request) then return request end
      scan.ended = true
      return nil
    end
  end
  scan.ended = true
  if passes and state.waiting > 0 then note_passed(math.huge, scan.used) end
end
-- Permits that were counted as in use are not: next_request() begins anew.
local function start_over()
  scan = nil
end

-- What a new *request* has to wait for: 'limit', 'rate', or nothing.
local function held_up(permits, most, request)
  if state.blocked_until or state.used + permits > room_in(most, state.used, state.ramp) then
    return 'limit'
  end
  return rated and rated.lets_at(request.costs) and 'rate'
end
-- The answer where the queue is as long as it may be, *queued* requests of this call included.
local function queue_is_full(max_waiters, queued)
  max_waiters = tonumber(max_waiters)
  return max_waiters >= 0 and state.waiting + queued >= max_waiters and -3
end
-- The answer for a request in the queue.
local function queue_answer()
  return 0
end

-- The requests of the releasing hub, *own*, that are granted before older ones while the oldest request
-- is young (zset), by the clock of the server. That needs no message and no other process. It is the
-- lock cohorting of Dice, Marathe and Shavit, 2012.
local function own_requests(own)
  if not string.find(mode, '^zset.* server$') or #own <= 1 then return {} end
  local head = call('ZRANGE', queue, 0, 0, 'WITHSCORES')
  local age = head[2] and now_us - head[2]
  if not age or age < 0 or age > YOUNG then return {} end
  local found, used = {}, state.used
  for name in string.gmatch(own, '[^,]+') do
    local request = parse_request(hub .. '.' .. name)
    local fits = used + request.permits <= room_in(limit_for(request.declared), used, state.ramp)
    if fits and ticket_of(request.text) then
      used = used + request.permits
      found[#found + 1] = request
    end
  end
  return found
end
