-- serve: grants permits that are free to the requests whose turn it is, and tells their hubs.
--
-- looked -> 'ms' or 'ms:ticket': the queue was looked through for requests of hubs that had died by
-- then; where there is a ticket, up to that one.

local own_grants = {}  -- number and token of each grant to a waiter of the caller's hub

-- Drops the requests of dead hubs, where one has died since. Returns how many were dropped.
local function drop_dead()
  local at, from = string.match(state.looked or '', '^(%d+):?(%d*)$')
  if at and from == '' and call('ZCOUNT', hubs, '(' .. at, now) == 0 then return 0 end
  if (from or '') == '' then at, from = exact(now), '-inf' end
  local rows = call('ZRANGEBYSCORE', queue, from, '+inf', 'WITHSCORES', 'LIMIT', 0, MAX_SCANNED)
  local dead = {}
  for i = 1, #rows, 2 do
    if hub_state(string.match(rows[i], '^%x+')).alive_until <= now then dead[#dead + 1] = rows[i] end
  end
  allow_writes_at_maxmemory()
  state.looked = at
  if #rows == 2 * MAX_SCANNED then
    state.looked, state.more = at .. ':' .. exact(rows[#rows]), true
  end
  note('looked', state.looked)
  leave_queue(dead)
  return #dead
end
-- The hub *owner* did not get a message, or did not act on one: it counts as dead until its next call.
local function mark_dead(owner)
  if owner == hub then return end
  hub_state(owner).alive_until = now
  call('ZADD', hubs, now, owner)
  keep(hubs, SLACK)
  call('HDEL', meta, 'looked')
  state.looked = nil
end

-- Sends *grants*, which are written, to their hub *owner*. Returns whether they may have been received;
-- a hub without push messages finds them with its next heartbeat.
local function tell(owner, grants)
  local parts = {}
  for i, grant in ipairs(grants) do
    if owner == hub then
      append(own_grants, { tonumber(grant.number), grant.token })
    else
      parts[i] = grant.number .. ':' .. exact(grant.token) .. ':' .. grant.lease
      if slotted then parts[i] = parts[i] .. ':' .. grant.slots end
    end
  end
  return owner == hub or hub_state(owner).no_push
    or publish_to(owner, 'granted', table.concat(parts, ',')) ~= 0
end

-- The request gets its permits, and leaves the queue.
local function take(request)
  request.token = next_token()
  occupy(request)
  if slotted then slotted.give(request) end
  if keyed then keyed.advance(request) end
  leave_queue({ request.text })
end
-- Takes back the permits of *grants*, which nobody received.
local function take_back(grants)
  local ids = {}
  for i, grant in ipairs(grants) do
    ids[i] = grant.id
    state.used = state.used - grant.permits
    if rated then rated.spend(grant.costs, -1) end
  end
  remove_holders(ids)
  if rated then rated.save(0) end
end
-- Writes *grants*, and sends them to their hubs, one message to each. Returns whether all of them may
-- have been received.
local function deliver(grants)
  local by_owner, owners, all = {}, {}, true
  for _, grant in ipairs(grants) do
    grant.by_message = grant.owner ~= hub and not hub_state(grant.owner).no_push
    local theirs = by_owner[grant.owner]
    if theirs then
      theirs[#theirs + 1] = grant
    else
      by_owner[grant.owner], owners[#owners + 1] = { grant }, grant.owner
    end
  end
  write_grants(grants)
  for _, owner in ipairs(owners) do
    if not tell(owner, by_owner[owner]) then
      mark_dead(owner)
      take_back(by_owner[owner])
      all = false
    end
  end
  return all
end

-- Grants requests while there is room. *first* are granted before all others.
local function serve(first)
  if state.waiting == 0 then return end
  for owner in pairs(state.silent) do mark_dead(owner) end
  for _, request in ipairs(first or {}) do take(request) end
  deliver(first or {})
  drop_dead()
  local served = 0
  repeat
    local grants = {}
    local request = next_request()
    while request do
      take(request)
      grants[#grants + 1] = request
      served = served + 1
      if served >= MAX_SERVED then stop_early() end
      request = served < MAX_SERVED and next_request()
    end
    local all = deliver(grants) and (not rated or rated.tell())
    if not all then
      state.blocked_until = nil
      start_over()
      if state.waiting > 0 then drop_dead() end
      served = served + 8  -- which costs more than a grant
      if served >= MAX_SERVED then stop_early() end
    end
  until all or served >= MAX_SERVED
end

-- In how many ms the queue may change by itself: a holder expires, the hub of the request that blocks
-- the queue is dead, or the ramp of a back-off rises; 0 when there is more to do now, -1 for never.
-- Who is refused asks for that, though nobody waits.
local function next_change()
  if state.more then return 0 end
  if state.waiting == 0 and not state.refuses then return -1 end
  local next_ms = next_expiry()
  local changes = math.min(state.blocked_until or math.huge, state.ramp_changes or math.huge,
    keyed and keyed.ramps_change or math.huge, rated and rated.look_at() or math.huge)
  if changes < math.huge and (next_ms < 0 or changes - now < next_ms) then
    next_ms = math.max(0, changes - now)
  end
  return next_ms
end
-- The beginning of a reply: {tag, next_ms, waiting, own_grants}.
local function reply_head()
  return { tag, next_change(), state.waiting, slotted and slotted.tell(own_grants) or own_grants }
end
-- The beginning of a reply, then the set limit with the back-off, the usual hold unless all were
-- *served*, *key_queues* if there are keys, and what rates hold up if there are any. See acquire.
local function reply_with_limit(served, key_queues)
  local reply = append(reply_head(), {
    with_back_off(state.set_limit or known and -1 or -2, state.back_off),
    served and -1 or usual_hold,
    key_queues,
  })
  if rated then reply[#reply + 1] = served and -1 or rated.backlog() end
  return reply
end

-- Has the first hubs in the queue, or in the line of *key*, look again: next_ms said another time.
-- Several, because the first may leave before it comes to that.
local function notify_head(key)
  local told = {}
  for _, request in ipairs(key and keyed.first_of(key, 10) or call('ZRANGE', queue, 0, 9)) do
    local owner = string.match(request, '^%x+')
    if not told[owner] then publish_to(owner, 'recheck', '-') end
    told[owner] = true
  end
end
