-- serve: a freed permit goes to the oldest request that may have it, where requests have no keys.
--
-- Fair: a request without room blocks the requests behind it, because it would starve otherwise.
-- Zset: it is passed over, and the oldest request that fits is next. One that only a back-off holds
-- up blocks the requests behind it, too.
--
-- So that requests which are passed over are not read in each call, meta has what is known of them:
-- passed -> 'ticket:used,...', where no request up to that ticket fits while so many permits or more
-- are in use. Both grow from one pair to the next.

local MAX_PAIRS = 8

local passes = string.find(mode, 'zset', 1, true)
local passed = {}        -- the pairs that are known, each {ticket, used}
local pairs_before = {}  -- those of the requests up to `position`, the last one excepted, which is
local position = 0       -- up to this ticket the requests were passed over,
local needed = 0         -- because so many permits or more are in use
local all_passed = true  -- no request behind that is left

-- The requests up to *ticket* do not fit while *in_use* permits are in use.
local function pass_over(ticket, in_use)
  if in_use > needed then
    if position > 0 then pairs_before[#pairs_before + 1] = { position, needed } end
    needed = in_use
  end
  position, last = ticket, math.max(last, ticket)  -- the counter may have been lost
end
-- Passes over the requests that are known not to fit. Returns whether there are any.
local function pass_known()
  local before = position
  for _, pair in ipairs(passed) do
    if pair[1] > position and pair[2] <= used then pass_over(pair[1], pair[2]) end
  end
  return position > before
end
-- Writes what is known of the requests that were passed over.
local function save_passed()
  local kept, texts = {}, {}
  for _, pair in ipairs(pairs_before) do kept[#kept + 1] = pair end
  local last_seen = { position, needed }  -- a call that continues begins there: it has to stay
  if position > 0 then kept[#kept + 1] = last_seen end
  for _, pair in ipairs(passed) do
    if pair[1] > position and pair[2] > needed then kept[#kept + 1] = pair end
  end
  while #kept > MAX_PAIRS do
    table.remove(kept, kept[#kept - 1] == last_seen and #kept - 2 or #kept - 1)
  end
  for i, pair in ipairs(kept) do texts[i] = exact(pair[1]) .. ':' .. exact(pair[2]) end
  local text = table.concat(texts, ',')
  if text ~= (fields[13] or '') then call('HSET', meta, 'passed', text) end
  fields[13] = text
end
local function forget_passed()
  if fields[13] then call('HDEL', meta, 'passed') end
  fields[13] = nil
end

-- Removes *requests* from the queue.
local function leave_queue(requests)
  waiting = waiting - call('ZREM', queue, unpack(requests))
end

-- Adds *entries*, ticket and request in turn, to the queue.
local function join_queue(entries)
  call('ZADD', queue, unpack(entries))
  if passes and all_passed then
    for i = 1, #entries, 2 do
      local _, _, _, declared, permits = parse_request(entries[i + 1])
      pass_over(tonumber(entries[i]), math.max(0, limit_for(declared) - permits + 1))
    end
    save_passed()
  end
end
local function keep_queue(need)
  keep(queue, need)
end

-- Drops requests of the dead, and parks those of hubs that are unreachable.
local function drop_and_park()
  local dead, unreached = look_through()
  if #dead > 0 then leave_queue(dead) end
  park(unreached)
end

-- Reads the queue from its head, or from what was passed over on, and finds whom to grant what there
-- is. *scanned* requests were read in this call, and *moved* granted.
local function scan(scanned, moved)
  local found = { recipients = {}, dead = {}, unservable = {}, scanned = scanned }
  local by_owner, at, size, skips = {}, position, 8, false
  repeat
    -- Fair: with head starts, several requests may have one ticket.
    local rows = call('ZRANGEBYSCORE', queue, passes and '(' .. exact(at) or 0, '+inf',
      'WITHSCORES', 'LIMIT', passes and 0 or found.scanned - scanned, size)
    skips = false
    for i = 1, #rows, 2 do
      local request = rows[i]
      local owner, number, lease, declared, permits = parse_request(request)
      local effective_limit = limit_for(declared)
      local fits = used + permits <= effective_limit
      local state = (fits or not passes) and hub_state(owner)
      at = tonumber(rows[i + 1])
      if not state then
        pass_over(at, math.max(0, effective_limit - permits + 1))
      elseif state.alive_until <= now then
        found.dead[#found.dead + 1] = request
      elseif state.unreachable or permits > effective_limit then
        found.unservable[#found.unservable + 1] = request
      elseif not fits or used + permits > room_in(effective_limit, used, ramp) then
        found.blocked_until = state.alive_until
        return found
      else
        used = used + permits
        local recipient = by_owner[owner]
        if not recipient then
          recipient = { owner = owner, grants = {}, numbers = {}, requests = {}, permits = 0 }
          by_owner[owner] = recipient
          found.recipients[#found.recipients + 1] = recipient
        end
        recipient.grants[#recipient.grants + 1] = {
          owner .. '.' .. number, next_token(), lease, permits,
        }
        if slotted then slotted.assign(owner .. '.' .. number, permits) end
        recipient.numbers[#recipient.numbers + 1] = number
        recipient.requests[#recipient.requests + 1] = request
        recipient.permits = recipient.permits + permits
        moved = moved + 1
        skips = passes and pass_known() and position > at
        if skips then
          at = position
          break
        end
      end
    end
    found.scanned = found.scanned + math.floor(#rows / 2)
    found.is_complete = #rows < 2 * size and not skips
    size = math.min(size * 4, MAX_SERVED)
  until found.is_complete or found.scanned >= MAX_SCANNED or moved >= MAX_SERVED
  return found
end

-- Grants requests from the head of the queue while there is room. Fair: a request that is heavier
-- than the limit is parked. In both modes, one whose hub is unreachable is.
local function serve()
  clear_unreachable()
  if waiting == 0 then return end
  all_passed = false
  drop_and_park()
  if set_limit == 0 then return end
  notice_lost_limit()
  if returns then forget_passed() end  -- the limit has changed, or older requests are back
  if not bring_back() then
    open, more = false, true
    return
  end
  for ticket, in_use in string.gmatch(passes and fields[13] or '', '(%d+):(%d+)') do
    passed[#passed + 1] = { tonumber(ticket), tonumber(in_use) }
  end
  local scanned, moved, undelivered = 0, 0
  repeat
    pass_known()
    local found = scan(scanned, moved)
    scanned = found.scanned
    local grants, served, lost_permits
    grants, served, lost_permits, undelivered = deliver_grants(found.recipients)
    used = used - lost_permits
    moved = moved + #served
    if #found.dead > 0 then leave_queue(found.dead) end
    if #served > 0 then leave_queue(served) end
    park(found.unservable)
    park(undelivered)
    write_grants(grants)
    if #undelivered > 0 then
      drop_and_park()  -- there may be more requests of these hubs
      position, needed, pairs_before = 0, 0, {}  -- what was passed over may fit now
    end
    if found.blocked_until and #undelivered == 0 then
      open, head_alive_until = false, found.blocked_until
      return
    end
    all_passed = found.is_complete
  until #undelivered == 0 or scanned >= MAX_SCANNED or moved >= MAX_SERVED
  if not all_passed or #undelivered > 0 then open, more = false, true end
  if passes then save_passed() end
end

-- Grants requests of the releasing hub, *own*, past older ones, where the oldest request is young
-- (zset), by the clock of the server. That needs no message and no other process. It is the lock
-- cohorting of Dice, Marathe and Shavit, 2012.
local function serve_own(own)
  if not string.find(mode, '^zset.* server$') or #own <= 1 then return end
  local head = call('ZRANGEBYSCORE', queue, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local age = head[2] and now_us - head[2]
  if not age or age < 0 or age > YOUNG then return end
  local grants, granted = {}, {}
  for name in string.gmatch(own, '[^,]+') do
    local request = hub .. '.' .. name
    local _, number, lease, declared, permits = parse_request(request)
    local score = is_queued(request)
    local most = room_in(limit_for(declared), used, ramp)
    if score and tonumber(score) >= 0 and used + permits <= most then
      used = used + permits
      local id, token = hub .. '.' .. number, next_token()
      if slotted then slotted.assign(id, permits) end
      grants[#grants + 1] = { id, token, lease, permits }
      granted[#granted + 1] = request
      own_grants[#own_grants + 1] = tonumber(number)
      own_grants[#own_grants + 1] = token
    end
  end
  if #granted == 0 then return end
  leave_queue(granted)
  write_grants(grants)
end

-- Whether a new request for *permits* has to wait: 'limit', or nil.
local function held_up(permits, effective_limit)
  if not open or used + permits > room_in(effective_limit, used, ramp) then
    return 'limit'
  end
end
-- The answer where the queue has *max_waiters* requests, which are all that it may have.
local function queue_is_full(max_waiters)
  max_waiters = tonumber(max_waiters)
  return max_waiters >= 0 and count_living() >= max_waiters and -3
end
-- The answer for a request in the queue.
local function queue_answer()
  return 0
end

-- Removes requests of dead hubs from the queue. Returns how many.
local function remove_dead_waiters()
  local leaving = {}
  for _, request in ipairs(call('ZRANGE', queue, 0, MAX_SCANNED - 1)) do
    local owner = parse_request(request)
    if hub_state(owner).alive_until <= now then leaving[#leaving + 1] = request end
  end
  if #leaving == 0 then return 0 end
  waiting = waiting - call('ZREM', queue, unpack(leaving))
  return #leaving
end
