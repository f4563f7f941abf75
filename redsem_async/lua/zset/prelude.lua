-- zset prelude: the line holds hubs, not requests. A release sends hints to the hubs in line, in
-- turn, for as many permits as it freed. A hub passes on what its requests do not take.
--
-- line     ZSET, hub -> its turn. In meta, hub:waits is 'requests:limit': how many of its requests
--          wait, and the highest limit that it declares

local MAX_SCANNED = 1000  -- hubs that one call reads at most
local MAX_NOTIFIED = 10   -- hubs that notify_head() tells

local own_grants = {}     -- {permits} of a hint to the caller's hub

-- How many requests of a hub wait and its highest limit, from its hub:waits.
local function parse_waits(announced)
  local count, declared = string.match(announced or '', '^(%d+):(%d+)$')
  return tonumber(count) or 0, tonumber(declared) or 0
end

-- Sends hints about the permits that this call freed to the hubs in line, as far as the limit of
-- each leaves room.
--
-- takes_turn   the caller requests permits for itself, which uses up its turn
-- gets_room    the reply contains the room, so the caller needs no hint
-- passes_hint  the call frees nothing and only passes a hint on, to hubs whose turn was before the
--              caller's. They get the caller's turn, so a hint that is too small for every hub goes
--              round once
local function serve(takes_turn, gets_room, passes_hint)
  local turn = (takes_turn or passes_hint) and call('ZSCORE', line, hub)
  local moved = takes_turn and turn
  if moved then call('ZADD', line, next_token(), hub) end
  if freed <= 0 or waiting == 0 or (set_limit and set_limit <= used) or grace > now then
    if moved then save_counter(0) end
    return
  end
  turn = passes_hint and turn
  local first = turn and call('ZRANGEBYSCORE', line, '-inf', '(' .. turn, 'LIMIT', 0, MAX_SCANNED)
      or call('ZRANGE', line, 0, MAX_SCANNED - 1)
  for _, owner in ipairs(first) do
    if freed <= 0 then break end
    local flags = call('HMGET', meta, owner .. ':waits', owner .. ':deaf', owner .. ':until')
    local count, declared = parse_waits(flags[1])
    local share = math.min(freed, count, limit_for(declared) - used)
    local alive = (tonumber(flags[3]) or 0) > now
    local takes = alive and count > 0
    if takes and (share <= 0 or owner == hub and gets_room) then
      takes = nil
    elseif takes and owner == hub then
      own_grants = { share }
    elseif takes and flags[2] == '1' then
      takes = nil  -- it gets no push messages, and finds room with its next heartbeat
    elseif takes then
      takes = publish_to(owner, 'hint', exact(share)) ~= 0
    end
    if takes then
      call('ZADD', line, turn or next_token(), owner)
      freed = freed - share
      moved = true
    elseif takes == false then
      waiting = waiting - call('ZREM', line, owner)
    end
  end
  if moved then save_counter(0) end
end

-- Records that *count* requests of the caller's hub wait, with *declared* as its highest limit.
local function announce(count, declared, lease)
  if count == 0 and waiting == 0 then return end
  if count == 0 then
    call('HDEL', meta, hub .. ':waits')
    waiting = waiting - call('ZREM', line, hub)
    return
  end
  call('HSET', meta, hub .. ':waits', exact(count) .. ':' .. exact(declared))
  local turn = call('ZSCORE', line, hub)
  if not turn then
    call('ZADD', line, next_token(), hub)
    save_counter(0)
    waiting = waiting + 1
  end
  keep(line, liveness_timeout(lease))
end

-- Whether another hub is in line.
local function others_wait()
  return waiting > 1 or waiting == 1 and not call('ZSCORE', line, hub)
end

-- The beginning of a reply: {tag, next_ms, waiting, own_grants}.
local function reply_head()
  local next_ms = more and 0 or waiting > 0 and next_expiry() or -1
  return { tag, next_ms, waiting, slotted and slotted.tell(own_grants) or own_grants }
end

-- The beginning of a reply, then the set limit, or -1; unless all were *served* the usual hold; and
-- the room that *effective_limit* leaves.
local function reply_with_room(effective_limit, served)
  local room = grace <= now and effective_limit - used or 0
  return append(reply_head(), { set_limit or -1, served and -1 or usual_hold, room })
end

-- The line has hubs, and no requests: a request is never in it.
local function in_line() return false end
local function leave_line() end

-- Sends a hint to the first hubs in line: an expiry is earlier than next_ms said.
local function notify_head()
  for _, owner in ipairs(call('ZRANGE', line, 0, MAX_NOTIFIED - 1)) do
    publish_to(owner, 'hint', '0')
  end
end

-- Removes dead hubs from the line. Returns 0, the number of requests removed.
local function remove_dead_waiters()
  for _, owner in ipairs(call('ZRANGE', line, 0, MAX_SCANNED - 1)) do
    if (tonumber(call('HGET', meta, owner .. ':until')) or 0) <= now then
      waiting = waiting - call('ZREM', line, owner)
    end
  end
  return 0
end

-- The line, for status: how many requests its live hubs announced, then hub and count of the first
-- *max_entries*.
local function list_line(max_entries)
  local count, entries = 0, {}
  for _, owner in ipairs(call('ZRANGE', line, 0, -1)) do
    local values = call('HMGET', meta, owner .. ':waits', owner .. ':until')
    local waits = parse_waits(values[1])
    if (tonumber(values[2]) or 0) > now then
      count = count + waits
      if #entries < 2 * max_entries then
        entries[#entries + 1] = owner
        entries[#entries + 1] = waits
      end
    end
  end
  return count, entries
end
