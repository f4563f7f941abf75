-- fair prelude: a freed permit goes to the head of the line, and the head blocks all others.

-- Removes *requests* from the line.
local function leave_line(requests)
  waiting = waiting - call('ZREM', line, unpack(requests))
end

-- Adds *entries*, ticket and request in turn, to the line.
local function join_line(entries)
  call('ZADD', line, unpack(entries))
end
local function keep_line(need)
  keep(line, need)
end

-- Grants requests from the head of the line while there is room. A request that is heavier than the
-- limit, or whose hub has no subscriber, is set aside. A request without room blocks the requests
-- behind it, because it would starve otherwise.
local function serve()
  clear_unreachable()
  if waiting == 0 or grace > now then return end
  local dead, gone = look_through()
  if #dead > 0 then leave_line(dead) end
  set_aside(gone)
  if set_limit == 0 then return end
  if not bring_back() then
    open, more = false, true
    return
  end
  local scanned, size, moved = 0, 8, 0
  while scanned < MAX_SCANNED and moved < MAX_SERVED do
    local chunk = call('ZRANGEBYSCORE', line, 0, '+inf', 'LIMIT', 0, size)
    local leaving, aside = {}, {}
    local recipients, by_owner, blocked = {}, {}, false
    for _, request in ipairs(chunk) do
      local owner, number, lease, declared, permits = parse_request(request)
      local state = hub_state(owner)
      local effective_limit = limit_for(declared)
      if state.alive_until <= now then
        leaving[#leaving + 1] = request
      elseif state.unreachable or permits > effective_limit then
        aside[#aside + 1] = request
      elseif used + permits > effective_limit then
        blocked = true
        head_alive_until = state.alive_until
        break
      else
        used = used + permits
        local recipient = by_owner[owner]
        if not recipient then
          recipient = { owner = owner, grants = {}, numbers = {}, requests = {}, permits = 0 }
          by_owner[owner] = recipient
          recipients[#recipients + 1] = recipient
        end
        recipient.grants[#recipient.grants + 1] = {
          owner .. '.' .. number, next_token(), lease, permits,
        }
        if slotted then slotted.assign(owner .. '.' .. number, permits) end
        recipient.numbers[#recipient.numbers + 1] = number
        recipient.requests[#recipient.requests + 1] = request
        recipient.permits = recipient.permits + permits
      end
    end
    scanned = scanned + #chunk
    local grants, served, lost_permits, undelivered = deliver_grants(recipients)
    used = used - lost_permits
    moved = moved + #served
    for _, request in ipairs(served) do leaving[#leaving + 1] = request end
    if #leaving > 0 then waiting = waiting - call('ZREM', line, unpack(leaving)) end
    set_aside(aside)
    set_aside(undelivered)
    write_grants(grants)
    if blocked and #undelivered == 0 then
      open = false
      return
    end
    head_alive_until = nil
    if #chunk < size and #undelivered == 0 then return end
    size = math.min(size * 4, MAX_SERVED)
  end
  open, more = false, true
end

-- Whether a new request for *permits* has to wait: 'limit', or nil.
local function held_up(permits, effective_limit)
  if not open or grace > now or used + permits > effective_limit then return 'limit' end
end
-- The answer where the line has *max_waiters* requests, which are all that it may have.
local function line_is_full(max_waiters)
  max_waiters = tonumber(max_waiters)
  return max_waiters >= 0 and count_living() >= max_waiters and -3
end
-- The answer for a request in line.
local function line_answer()
  return 0
end

-- Removes requests of dead hubs from the line. Returns how many.
local function remove_dead_waiters()
  local leaving = {}
  for _, request in ipairs(call('ZRANGE', line, 0, MAX_SCANNED - 1)) do
    local owner = parse_request(request)
    if hub_state(owner).alive_until <= now then leaving[#leaving + 1] = request end
  end
  if #leaving == 0 then return 0 end
  waiting = waiting - call('ZREM', line, unpack(leaving))
  return #leaving
end
