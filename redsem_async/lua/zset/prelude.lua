-- ZSET mode: no queue of requests; the line holds the processes that wait, and a release hints
-- as many of them, in turn, as it freed permits. Who takes nothing passes the hint on.
--
-- line     ZSET, hub -> its turn; meta holds hub:waits, 'requests:limit': how many of its requests
--          wait, and the highest limit that it declares

local MAX_SCANNED = 1000  -- most processes that one call looks at
local MAX_NOTIFIED = 10   -- most of which one is to hear a hint

local own_grants = {}     -- {permits} when the caller itself is hinted

-- How many requests of a hub wait, and its highest limit.
local function parse_waits(announced)
  local count, declared = string.match(announced or '', '^(%d+):(%d+)$')
  return tonumber(count) or 0, tonumber(declared) or 0
end

-- Hints the processes in line about the permits that this call freed, as far as the limit of each
-- leaves room for it.
--
-- kept     permits that the caller tries for itself: that was its turn
-- asks     the caller is told how much room there is, which is worth more than a hint
-- passes   the call only passes a hint on, to those whose turn was before the caller's; they
--          come to share its turn, so that a hint too small for anybody goes round once
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
    local share = math.min(freed, count, (set_limit or declared) - used)
    local alive = (tonumber(flags[3]) or 0) > now
    local takes = alive and count > 0
    if takes and (share <= 0 or owner == hub and gets_room) then
      takes = nil
    elseif takes and owner == hub then
      own_grants = { share }
    elseif takes and flags[2] == '1' then
      takes = nil  -- hears nothing, but finds room with its next heartbeat
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

-- Notes that *count* requests of the caller's hub wait, *declared* being its highest limit.
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

-- The part of a reply that tells the caller how things stand.
local function reply_head()
  local next_ms = more and 0 or waiting > 0 and next_expiry() or -1
  return { tag, next_ms, waiting, own_grants }
end

-- Tells the first in line who hears it that something will change earlier than it was told.
local function notify_head()
  for _, owner in ipairs(call('ZRANGE', line, 0, MAX_NOTIFIED - 1)) do
    if publish_to(owner, 'hint', '0') ~= 0 then return end
  end
end

-- Takes dead processes out of the line. Returns 0: no request of theirs was in it.
local function remove_dead_waiters()
  for _, owner in ipairs(call('ZRANGE', line, 0, MAX_SCANNED - 1)) do
    if (tonumber(call('HGET', meta, owner .. ':until')) or 0) <= now then
      waiting = waiting - call('ZREM', line, owner)
    end
  end
  return 0
end

-- Who waits, for status: how many requests the processes in line last announced, then hub and
-- count of the first *most*.
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
