-- line: the line of requests, in the order of their tickets, of semaphores with and without keys.
--
-- line     ZSET, request -> ticket. A request is '<hub>.<number>:<lease_ms>:<limit>:<permits>',
--          which is all that a script of another hub needs to grant it. The score of a request
--          that is set aside is its ticket minus ASIDE: below 0, which the scan does not read

local MAX_SCANNED = 1000  -- requests that one call reads at most
local MAX_NOTIFIED = 10   -- requests whose hubs notify_head() tries at most
local MAX_SERVED = 64     -- requests that one call grants, about
local MAX_COMPARED = 64   -- requests that others_wait() looks at
local ASIDE = 2 ^ 52      -- above any ticket

local own_grants = {}   -- number and token of each grant to a waiter of the caller's hub
local open = true       -- no waiter has precedence: a new request may be granted at once
local head_alive_until  -- until when the hub of the blocked head counts as alive
local heads_alive_until = math.huge  -- and the hubs whose requests hold others of their keys up

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

-- Whether *request* is in line.
local function in_line(request)
  return call('ZSCORE', line, request)
end

-- The state of the hub *owner*, read once in a call.
local hub_states = {}
local function hub_state(owner)
  local state = hub_states[owner]
  if not state then
    local flags = call('HMGET', meta, owner .. ':until', owner .. ':deaf', owner .. ':gone')
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
    -- The lease is short at first, because the process may be stopped. Its first refresh makes it
    -- whole.
    grant[3] = math.min(grant[3], math.max(2 * heartbeat_interval(grant[3]), 1000))
    parts[i] = recipient.numbers[i] .. ':' .. exact(grant[2]) .. ':' .. grant[3]
    if slotted then parts[i] = parts[i] .. ':' .. slotted.assign(grant[1], grant[4]) end
  end
  return hub_states[recipient.owner].no_push
    or publish_to(recipient.owner, 'granted', table.concat(parts, ',')) ~= 0
end

-- Sends the grants of a chunk of the line, with one message for each hub. Returns the grants to
-- write and their requests; and for hubs without a subscriber the number of permits, the requests,
-- and until when the first of these hubs counts as alive.
local function deliver_grants(recipients)
  local grants, served, lost_permits, undelivered, undelivered_until = {}, {}, 0, {}, math.huge
  for _, recipient in ipairs(recipients) do
    local own = recipient.owner == hub
    if not own and not publish_grants(recipient) then
      hub_states[recipient.owner].unreachable = true
      call('HSET', meta, recipient.owner .. ':gone', '1')
      save_counter(0)  -- the tokens of the lost message are not issued again
      for _, request in ipairs(recipient.requests) do undelivered[#undelivered + 1] = request end
      undelivered_until = math.min(undelivered_until, hub_states[recipient.owner].alive_until)
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
  return grants, served, lost_permits, undelivered, undelivered_until
end

-- Sets *requests* aside: they cannot be granted now, and must not block the requests behind them.
-- They keep their tickets. They return to the line when the limit changes, when their hub is back,
-- or at *alive_until*, when the hub counts as dead unless it was kept alive.
local function set_aside(requests, alive_until)
  if #requests == 0 then return end
  local scores = {}
  for i, ticket in ipairs(call('ZMSCORE', line, unpack(requests))) do
    scores[2 * i - 1], scores[2 * i] = exact(ticket - ASIDE), requests[i]
  end
  call('ZADD', line, unpack(scores))
  if not aside_due or alive_until < aside_due then
    aside_due = alive_until
    call('HSET', meta, 'aside', aside_due)
  end
end

-- Returns requests that were set aside to the line, once that is due. The result is whether all of
-- them are back, and which are: request and ticket in turn.
local function bring_back()
  if not aside_due or aside_due > now then return true, {} end
  local entries = call('ZRANGEBYSCORE', line, '-inf', '(0', 'WITHSCORES', 'LIMIT', 0, MAX_SCANNED)
  local scores = {}
  for i = 1, #entries, 2 do
    entries[i + 1] = exact(entries[i + 1] + ASIDE)
    scores[i], scores[i + 1] = entries[i + 1], entries[i]
  end
  if #scores > 0 then call('ZADD', line, unpack(scores)) end
  if #entries == 2 * MAX_SCANNED then return false, entries end
  call('HDEL', meta, 'aside')
  aside_due = nil
  return true, entries
end

-- Whether another hub has a request in line, as far as MAX_COMPARED requests show.
local function others_wait()
  if waiting == 0 or waiting > MAX_COMPARED then return waiting > 0 end
  for _, request in ipairs(call('ZRANGE', line, 0, MAX_COMPARED - 1)) do
    if string.sub(request, 1, #hub) ~= hub then return true end
  end
  return false
end

-- In how many ms the line may change by itself: a holder expires, or the head's hub is dead; 0 when
-- there is more to do now, -1 for never.
local function next_change()
  if more then return 0 end
  if waiting == 0 then return -1 end
  local next_ms = next_expiry()
  local alive_until = math.min(head_alive_until or math.huge, heads_alive_until)
  if alive_until < math.huge and (next_ms < 0 or alive_until - now < next_ms) then
    next_ms = math.max(0, alive_until - now)
  end
  return next_ms
end

-- The beginning of a reply: {tag, next_ms, waiting, own_grants}.
local function reply_head()
  return { tag, next_change(), waiting, slotted and slotted.tell(own_grants) or own_grants }
end

-- The beginning of a reply, then the set limit, or -1, and unless all were *served* the usual hold.
local function reply_with_limit(served)
  return append(reply_head(), { set_limit or -1, served and -1 or usual_hold })
end

-- Sends a hint to the first hub in line that receives it: an expiry is earlier than next_ms said.
local function notify_head()
  for _, head in ipairs(call('ZRANGEBYSCORE', line, 0, '+inf', 'LIMIT', 0, MAX_NOTIFIED)) do
    if publish_to((parse_request(head)), 'hint', '0') ~= 0 then return end
  end
end

-- The line, for status: the number of requests, then request and ticket of the first *max_entries*.
local function list_line(max_entries)
  if max_entries == 0 then return waiting, {} end
  local rows = {}
  local function read(from, to, beside)
    local part = call('ZRANGEBYSCORE', line, from, to, 'WITHSCORES', 'LIMIT', 0, max_entries)
    for i = 1, #part, 2 do rows[#rows + 1] = { part[i], part[i + 1] + beside } end
  end
  read('-inf', '(0', ASIDE)
  read(0, '+inf', 0)
  table.sort(rows, function(one, other) return one[2] < other[2] end)
  local entries = {}
  for i = 1, math.min(max_entries, #rows) do
    entries[2 * i - 1], entries[2 * i] = rows[i][1], exact(rows[i][2])
  end
  return waiting, entries
end
