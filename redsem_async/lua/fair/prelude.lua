-- Fair mode: the line holds requests, in ticket order, and a freed permit goes to its head.
--
-- line     ZSET, request -> ticket; a request is '<hub>.<number>:<lease_ms>:<limit>:<permits>',
--          so that somebody else's script can serve it

local LOOK = 1000     -- most requests that one call looks at
local SERVE = 64      -- about as many of them it serves

local mine = {}       -- number and token of each grant to a waiter of the caller's own hub
local open = true     -- no eligible waiter is left: a newcomer may be granted at once
local head_until      -- until when the hub of the blocked head counts as alive

local function request_of(number, lease, declared, permits)
  return hub .. '.' .. number .. ':' .. lease .. ':' .. declared .. ':' .. permits
end
local function parse(request)
  local owner, number, lease, declared, permits =
    string.match(request, '^(%x+)%.(%d+):(%d+):(%d+):(%d+)$')
  return owner, number, tonumber(lease), tonumber(declared), tonumber(permits)
end

local known = {}
local function state_of(owner)
  local state = known[owner]
  if not state then
    local flags = call('HMGET', meta, owner .. ':until', owner .. ':deaf', owner .. ':gone')
    state = {
      alive_until = tonumber(flags[1]) or 0,
      deaf = flags[2] == '1',
      gone = flags[3] and owner ~= hub,
    }
    known[owner] = state
  end
  return state
end

-- Tells the process of *party* what it was granted. Returns whether it may have heard so.
local function offer(party)
  local parts = {}
  for i, grant in ipairs(party.grants) do
    -- A stopped process costs a short lease; its first refresh makes it a whole one.
    grant[3] = math.min(grant[3], math.max(2 * heartbeat_of(grant[3]), 1000))
    parts[i] = party.numbers[i] .. ':' .. exact(grant[2]) .. ':' .. grant[3]
  end
  return known[party.owner].deaf or tell(party.owner, 'granted', table.concat(parts, ',')) ~= 0
end

-- Hands what a chunk of the line was granted to its owners, each told once. Returns the grants
-- to write, and the permits and requests of owners that nobody listens for.
local function hand_over(parties)
  local grants, served, lost_permits, lost_requests = {}, {}, 0, 0
  for _, party in ipairs(parties) do
    local own = party.owner == hub
    if not own and not offer(party) then
      known[party.owner].gone = true
      call('HSET', meta, party.owner .. ':gone', '1')
      save_counter(0)  -- the tokens that nobody heard are not drawn again
      lost_requests = lost_requests + #party.grants
      lost_permits = lost_permits + party.permits
    else
      for i, grant in ipairs(party.grants) do
        grants[#grants + 1] = grant
        served[#served + 1] = party.requests[i]
        if own then
          mine[#mine + 1] = tonumber(party.numbers[i])
          mine[#mine + 1] = grant[2]
        end
      end
    end
  end
  return grants, served, lost_permits, lost_requests
end

-- Serves the line from its head for as long as there is room. A request heavier than the
-- limit, or of a process that is gone, is passed over and keeps its place; one without room
-- blocks those behind it, which is what keeps it from starving.
local function serve()
  if cap == 0 or waiting == 0 or grace > now then return end
  local passed, looked, size, moved = 0, 0, 8, 0
  while looked < LOOK and moved < SERVE do
    local chunk = call('ZRANGE', line, passed, passed + size - 1)
    local leaving, parties, by_owner, blocked = {}, {}, {}, false
    for _, request in ipairs(chunk) do
      local owner, number, lease, declared, permits = parse(request)
      local state = state_of(owner)
      local most = cap or declared
      if state.alive_until <= now then
        leaving[#leaving + 1] = request
      elseif state.gone or permits > most then
        passed = passed + 1
      elseif used + permits > most then
        blocked = true
        head_until = state.alive_until
        break
      else
        used = used + permits
        local party = by_owner[owner]
        if not party then
          party = { owner = owner, grants = {}, numbers = {}, requests = {}, permits = 0 }
          by_owner[owner] = party
          parties[#parties + 1] = party
        end
        party.grants[#party.grants + 1] = { owner .. '.' .. number, draw(), lease, permits }
        party.numbers[#party.numbers + 1] = number
        party.requests[#party.requests + 1] = request
        party.permits = party.permits + permits
      end
    end
    looked = looked + #chunk
    local grants, served, lost_permits, lost_requests = hand_over(parties)
    used = used - lost_permits
    passed = passed + lost_requests
    for _, request in ipairs(served) do leaving[#leaving + 1] = request end
    if #leaving > 0 then
      moved = moved + #leaving
      waiting = waiting - call('ZREM', line, unpack(leaving))
    end
    hold(grants)
    if blocked and lost_requests == 0 then
      open = false
      return
    end
    head_until = nil
    if #chunk < size and lost_requests == 0 then return end
    size = math.min(size * 4, SERVE)
  end
  open = false
  more = more or moved > 0
end

-- In how many ms something may change by itself: an expiry, or the head's process given up.
local function next_moment()
  if more then return 0 end
  if waiting == 0 then return -1 end
  local moment = next_expiry()
  if head_until and (moment < 0 or head_until - now < moment) then
    moment = math.max(0, head_until - now)
  end
  return moment
end

-- The part of a reply that tells the caller how things stand.
local function standing()
  return { tag, next_moment(), waiting, mine }
end

-- Tells the head of the line that something will change earlier than it was told.
local function nudge()
  tell((parse(call('ZRANGE', line, 0, 0)[1])), 'hint', '0')
end

-- Takes requests of dead processes out of the line. Returns how many.
local function sweep()
  local leaving = {}
  for _, request in ipairs(call('ZRANGE', line, 0, LOOK - 1)) do
    if state_of((parse(request))).alive_until <= now then leaving[#leaving + 1] = request end
  end
  if #leaving == 0 then return 0 end
  waiting = waiting - call('ZREM', line, unpack(leaving))
  return #leaving
end

-- Who waits, for status: the count, then request and ticket of the first *most*.
local function listing(most)
  return waiting, most > 0 and call('ZRANGE', line, 0, most - 1, 'WITHSCORES') or {}
end
