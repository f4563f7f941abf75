-- Fair mode: the line holds requests, in ticket order, and a freed permit goes to its head.
--
-- line     ZSET, request -> ticket; a request is '<hub>.<number>:<lease_ms>:<limit>:<permits>',
--          so that somebody else's script can serve it. The score of one that is set aside is its
--          ticket less ASIDE: below 0, where the scan of the line does not meet it

local LOOK = 1000     -- most requests that one call looks at
local NUDGED = 10     -- most requests of which one is to hear a hint
local SERVE = 64      -- about as many of them it serves
local ASIDE = 2 ^ 52  -- above any ticket

local mine = {}       -- number and token of each grant to a waiter of the caller's own hub
local open = true     -- no eligible waiter is left: a newcomer may be granted at once
local head_until      -- until when the hub of the blocked head counts as alive

local function request_of(number, lease, declared, permits)
  return hub .. '.' .. number .. ':' .. lease .. ':' .. declared .. ':' .. exact(permits)
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
-- to write; and of owners that nobody listens for the permits, the requests, and until when the
-- first of them counts as alive.
local function hand_over(parties)
  local grants, served, lost_permits, unheard, unheard_until = {}, {}, 0, {}, math.huge
  for _, party in ipairs(parties) do
    local own = party.owner == hub
    if not own and not offer(party) then
      known[party.owner].gone = true
      call('HSET', meta, party.owner .. ':gone', '1')
      save_counter(0)  -- the tokens that nobody heard are not drawn again
      for _, request in ipairs(party.requests) do unheard[#unheard + 1] = request end
      unheard_until = math.min(unheard_until, known[party.owner].alive_until)
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
  return grants, served, lost_permits, unheard, unheard_until
end

-- Sets *requests* aside: they cannot be served now, and others must not be hidden behind them. They
-- keep their tickets, and come back when the limit changes, when their process is heard from, and
-- when it would have to be dead by then.
local function set_aside(requests, alive_until)
  if #requests == 0 then return end
  local scores = {}
  for i, ticket in ipairs(call('ZMSCORE', line, unpack(requests))) do
    scores[2 * i - 1], scores[2 * i] = exact(ticket - ASIDE), requests[i]
  end
  call('ZADD', line, unpack(scores))
  if not look_again or alive_until < look_again then
    look_again = alive_until
    call('HSET', meta, 'aside', look_again)
  end
end

-- Brings back what was set aside, once that is due. Returns whether none of it is left to bring.
local function bring_back()
  if not look_again or look_again > now then return true end
  local back = call('ZRANGEBYSCORE', line, '-inf', '(0', 'WITHSCORES', 'LIMIT', 0, LOOK)
  local scores = {}
  for i = 1, #back, 2 do
    scores[i], scores[i + 1] = exact(back[i + 1] + ASIDE), back[i]
  end
  if #scores > 0 then call('ZADD', line, unpack(scores)) end
  if #back == 2 * LOOK then return false end
  call('HDEL', meta, 'aside')
  look_again = nil
  return true
end

-- Serves the line from its head for as long as there is room. A request heavier than the
-- limit, or of a process that nobody listens for, is set aside; one without room blocks those
-- behind it, which is what keeps it from starving.
local function serve()
  heard_from()
  if cap == 0 or waiting == 0 or grace > now then return end
  if not bring_back() then
    open, more = false, true
    return
  end
  local looked, size, moved = 0, 8, 0
  while looked < LOOK and moved < SERVE do
    local chunk = call('ZRANGEBYSCORE', line, 0, '+inf', 'LIMIT', 0, size)
    local leaving, aside, aside_until = {}, {}, math.huge
    local parties, by_owner, blocked = {}, {}, false
    for _, request in ipairs(chunk) do
      local owner, number, lease, declared, permits = parse(request)
      local state = state_of(owner)
      local most = cap or declared
      if state.alive_until <= now then
        leaving[#leaving + 1] = request
      elseif state.gone or permits > most then
        aside[#aside + 1] = request
        aside_until = math.min(aside_until, state.alive_until)
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
    local grants, served, lost_permits, unheard, unheard_until = hand_over(parties)
    used = used - lost_permits
    moved = moved + #served
    for _, request in ipairs(served) do leaving[#leaving + 1] = request end
    if #leaving > 0 then waiting = waiting - call('ZREM', line, unpack(leaving)) end
    set_aside(aside, aside_until)
    set_aside(unheard, unheard_until)
    hold(grants)
    if blocked and #unheard == 0 then
      open = false
      return
    end
    head_until = nil
    if #chunk < size and #unheard == 0 then return end
    size = math.min(size * 4, SERVE)
  end
  open, more = false, true
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

-- Tells the first in line who hears it that something will change earlier than it was told.
local function nudge()
  for _, head in ipairs(call('ZRANGEBYSCORE', line, 0, '+inf', 'LIMIT', 0, NUDGED)) do
    if tell((parse(head)), 'hint', '0') ~= 0 then return end
  end
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
  if most == 0 then return waiting, {} end
  local found = {}
  local function read(from, to, beside)
    local part = call('ZRANGEBYSCORE', line, from, to, 'WITHSCORES', 'LIMIT', 0, most)
    for i = 1, #part, 2 do found[#found + 1] = { part[i], part[i + 1] + beside } end
  end
  read('-inf', '(0', ASIDE)
  read(0, '+inf', 0)
  table.sort(found, function(one, other) return one[2] < other[2] end)
  local entries = {}
  for i = 1, math.min(most, #found) do
    entries[2 * i - 1], entries[2 * i] = found[i][1], exact(found[i][2])
  end
  return waiting, entries
end
