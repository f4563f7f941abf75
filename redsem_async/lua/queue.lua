-- queue: the requests that wait, in the order of their tickets, of semaphores with and without keys.
--
-- queue    ZSET, request -> ticket. A request is '<hub>.<number>:<lease_ms>:<limit>:<permits>',
--          which is all that a script of another hub needs to grant it. The score of a request
--          that is parked is its ticket minus PARKED: below 0, which the scan does not read. It is
--          its ticket minus 2 * PARKED where its hub is unreachable: it does not count as waiting
--          then

local MAX_SCANNED = 1000  -- requests that one call reads at most
local MAX_SERVED = 64     -- requests that one call grants, about
local MAX_LISTED = 1000   -- requests that look_through() reads in one call

local own_grants = {}   -- number and token of each grant to a waiter of the caller's hub
local open = true       -- no waiter has precedence: a new request may be granted at once
local head_alive_until  -- until when the hub of the blocked head counts as alive
local keys_change = math.huge  -- when keys may change by themselves

-- *tail* is what follows for a request of a semaphore with keys.
local function format_request(number, lease, declared, permits, tail)
  return hub .. '.' .. number .. ':' .. lease .. ':' .. declared .. ':' .. exact(permits)
    .. (tail or '')
end
local function parse_request(request)
  local owner, number, lease, declared, permits =
    string.match(request, '^(%x+)%.(%d+):(%d+):(%d+):(%d+)')
  return owner, number, tonumber(lease), tonumber(declared), tonumber(permits)
end

-- The ticket of a request, whose score in the queue is *score*.
local function ticket_of(score)
  score = tonumber(score)
  return score < -PARKED and score + 2 * PARKED or score < 0 and score + PARKED or score
end

-- How many requests wait, without those whose hubs are unreachable.
local function count_living()
  if waiting == 0 then return 0 end
  return waiting - call('ZCOUNT', queue, '-inf', '(' .. exact(-PARKED))
end

local function is_queued(request)
  return call('ZSCORE', queue, request)
end

-- The state of the hub *owner*, read once in a call.
local hub_states = {}
local function hub_state(owner)
  local state = hub_states[owner]
  if not state then
    local flags = call('HMGET', meta, owner .. ':until', owner .. ':no_push', owner .. ':unreachable')
    state = {
      alive_until = tonumber(flags[1]) or 0,
      no_push = flags[2] == '1',
      unreachable = flags[3] and owner ~= hub,
    }
    hub_states[owner] = state
  end
  return state
end

-- Sends the grants of *recipient* to its hub. Returns whether they may have been received; a hub
-- without push messages finds them with its next heartbeat.
local function publish_grants(recipient)
  local parts = {}
  for i, grant in ipairs(recipient.grants) do
    parts[i] = recipient.numbers[i] .. ':' .. exact(grant[2]) .. ':' .. grant[3]
    if slotted then parts[i] = parts[i] .. ':' .. slotted.assign(grant[1], grant[4]) end
  end
  return hub_states[recipient.owner].no_push
    or publish_to(recipient.owner, 'granted', table.concat(parts, ',')) ~= 0
end

-- Sends the grants of a chunk of the queue, with one message for each hub. Returns the grants to
-- write and their requests; and for hubs without a subscriber the number of permits and the
-- requests.
local function deliver_grants(recipients)
  local grants, served, lost_permits, undelivered = {}, {}, 0, {}
  for _, recipient in ipairs(recipients) do
    local own = recipient.owner == hub
    if not own and not publish_grants(recipient) then
      hub_states[recipient.owner].unreachable = true
      call('HSET', meta, recipient.owner .. ':unreachable', '1')
      call('HDEL', meta, 'looked')  -- there may be more requests of this hub
      fields[14] = nil
      save_counter(0)  -- the tokens of the lost message are not issued again
      for _, request in ipairs(recipient.requests) do undelivered[#undelivered + 1] = request end
      lost_permits = lost_permits + recipient.permits
      if slotted then slotted.undelivered(recipient.grants) end
    else
      for i, grant in ipairs(recipient.grants) do
        grants[#grants + 1] = grant
        served[#served + 1] = recipient.requests[i]
        if own then
          own_grants[#own_grants + 1] = tonumber(recipient.numbers[i])
          own_grants[#own_grants + 1] = grant[2]
        end
      end
    end
  end
  return grants, served, lost_permits, undelivered
end

-- Parks *requests*: they cannot be granted now, and must not block the requests behind them. They
-- keep their tickets. They return to the queue when the limit changes; those of a hub that is
-- unreachable, when it is back.
local function park(requests)
  if #requests == 0 then return end
  local scores = {}
  for i, score in ipairs(call('ZMSCORE', queue, unpack(requests))) do
    local below = hub_state((parse_request(requests[i]))).unreachable and 2 * PARKED or PARKED
    scores[2 * i - 1], scores[2 * i] = exact(ticket_of(score) - below), requests[i]
  end
  call('ZADD', queue, unpack(scores))
end

-- If the key of the set limit is lost (evicted, deleted), requests that it held up may fit. If meta
-- was lost before, it no longer says that there was one.
local function notice_lost_limit()
  if set_limit and not fields[15] then
    fields[15] = exact(set_limit)
    call('HSET', meta, 'limit', fields[15])
  elseif fields[15] and not set_limit then
    call('HDEL', meta, 'limit')
    fields[15] = nil
    return_parked()
  end
end

-- Returns parked requests to the queue, where that is due, but for those whose hubs are unreachable.
-- The result is whether all of them are back, and which are: request and ticket in turn. Where it
-- stopped early, it continues with the next call.
local function bring_back()
  if not returns then return true, {} end
  local rows = call('ZRANGEBYSCORE', queue, returns, '(0', 'WITHSCORES', 'LIMIT', 0, MAX_SCANNED)
  local entries, scores = {}, {}
  for i = 1, #rows, 2 do
    local request, score = rows[i], tonumber(rows[i + 1])
    if score >= -PARKED or not hub_state((parse_request(request))).unreachable then
      entries[#entries + 1], scores[#scores + 1] = request, exact(ticket_of(score))
      entries[#entries + 1], scores[#scores + 1] = exact(ticket_of(score)), request
    end
  end
  if #scores > 0 then call('ZADD', queue, unpack(scores)) end
  if #rows == 2 * MAX_SCANNED then
    returns = exact(tonumber(rows[#rows]))
    call('HSET', meta, 'returns', returns)
    return false, entries
  end
  call('HDEL', meta, 'returns')
  returns = nil
  return true, entries
end

-- When the queue was looked through for requests of hubs that have died, if it was; from which score
-- on it is still to be looked through, nil where it is not; and whether hubs have died since.
local function last_look()
  local at, from = string.match(fields[14] or '', '^(%d+):?(.*)$')
  if not at or from ~= '' then return at, from, true end
  return at, nil, call('ZCOUNT', hubs, '(' .. at, exact(now)) > 0
end

-- Looks through the queue where a hub has died, or was found to be unreachable. The result is the
-- requests of the dead, which are to leave the queue, and those of the unreachable, which are to be
-- parked.
local function look_through()
  local at, from, some_died = last_look()
  local dead, unreached = {}, {}
  -- Once in a second, because that is work for a long queue, and hubs without requests die, too.
  if not some_died or at and not from and now - at < 1000 then return dead, unreached end
  if not from then at, from = exact(now), '-inf' end
  local rows = call('ZRANGEBYSCORE', queue, from, '+inf', 'WITHSCORES', 'LIMIT', 0, MAX_LISTED)
  local stopped = #rows == 2 * MAX_LISTED and rows[#rows]
  for i = 1, #rows, 2 do
    if #dead + #unreached == MAX_SCANNED then
      stopped = rows[i + 1]
      break
    end
    local state = hub_state((parse_request(rows[i])))
    if state.alive_until <= now then
      dead[#dead + 1] = rows[i]
    elseif state.unreachable and tonumber(rows[i + 1]) >= -PARKED then
      unreached[#unreached + 1] = rows[i]
    end
  end
  allow_writes_at_maxmemory()
  fields[14] = at .. (stopped and ':' .. stopped or '')
  call('HSET', meta, 'looked', fields[14])
  if stopped then more = true end
  return dead, unreached
end

-- In how many ms the queue may change by itself: a holder expires, the head's hub is dead, or the
-- ramp of a back-off rises; 0 when there is more to do now, -1 for never.
local function next_change()
  if more then return 0 end
  if waiting == 0 then return -1 end
  local next_ms = next_expiry()
  local changes = math.min(head_alive_until or math.huge, keys_change, ramp_changes or math.huge)
  if changes < math.huge and (next_ms < 0 or changes - now < next_ms) then
    next_ms = math.max(0, changes - now)
  end
  return next_ms
end

-- The beginning of a reply: {tag, next_ms, waiting, own_grants}.
local function reply_head()
  return { tag, next_change(), count_living(), slotted and slotted.tell(own_grants) or own_grants }
end

-- The beginning of a reply, then the set limit with the back-off, the usual hold unless all were
-- *served*, and *key_queues* if there are keys. See acquire.
local function reply_with_limit(served, key_queues)
  return append(reply_head(), {
    with_back_off(set_limit or unknown_hub and -2 or -1, fields[7]),
    served and -1 or usual_hold,
    key_queues,
  })
end

-- Has the first hubs in the queue look again: an expiry is earlier than next_ms said. Several, because
-- the first may leave before it comes to that.
local function notify_head()
  local told = {}
  for _, request in ipairs(call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, 10)) do
    local owner = parse_request(request)
    if not told[owner] then publish_to(owner, 'recheck', '-') end
    told[owner] = true
  end
end

-- The queue, for status: the number of requests, then request and ticket of the first *max_entries*.
-- Requests of hubs that are unreachable or dead are left out; *dead_requests* gets those that are
-- still in the queue, of the first ones.
local dead_requests = {}
local function list_queue(max_entries)
  local _, _, some_died = last_look()
  local most = some_died and math.max(max_entries, 5 * MAX_LISTED) or max_entries
  local rows = {}
  local function read(from_score, to)
    local part = call('ZRANGEBYSCORE', queue, from_score, to, 'WITHSCORES', 'LIMIT', 0, most)
    local listed = 0
    for i = 1, #part, 2 do
      if hub_state(string.sub(part[i], 1, #hub)).alive_until <= now then
        dead_requests[#dead_requests + 1] = part[i]
      elseif listed < max_entries then
        listed = listed + 1
        rows[#rows + 1] = { part[i], ticket_of(part[i + 1]) }
      end
    end
  end
  if waiting > 0 and most > 0 then
    read(exact(-PARKED), '(0')
    read(0, '+inf')
  end
  table.sort(rows, function(one, other) return one[2] < other[2] end)
  local entries = {}
  for i = 1, math.min(max_entries, #rows) do
    entries[2 * i - 1], entries[2 * i] = rows[i][1], exact(rows[i][2])
  end
  return count_living() - #dead_requests, entries
end
