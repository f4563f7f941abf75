-- keyed: whose turn it is, where requests have keys. A request counts against the limit for all and
-- against the limit of its key. One that only its own key holds up does not hold up other keys.
--
-- KEYS after those of the head:
--          uses        ZSET, key -> permits in use, of each key that holds, waits or is paused
--          lines       ZSET, all scores 0, '<key>!<ticket>:<request>' for each request in the queue:
--                      the line of each key, in its order. A '!' is less than any character of a key
--          ready       ZSET, key -> place: the keys whose first request fits under the limit of the
--                      key. The place is the ticket of that request; with share, the time when its
--                      patience ends: a lease after that, for a request without a key. '!' -> inf is a
--                      member while anybody waits, so that a loss is noticed
--          key_limits  HASH, key -> the limit that is set for it, as in set_limit. It has no expiry
--          ramps       ZSET, key -> when the ramp of its back-off changes, in ms
--          turns       ZSET, with share: '<virtual time>:<place>:<key>' of each ready key -> its use
--                      for its weight, which is 0 without a key
-- meta     back_off:<key>  the back-off of a key; key_back_offs -> that there are some
--          ready_for       'limit', 'limit/count' or either with ' key': for which set limit `ready` is
--                          right ('-' for none), and for how many set limits of keys; where there
--                          is a key, as far as that key, in the order of lines
--          passed:<key>    'ticket:limit': the requests of the key up to that ticket are heavier than
--                          the limit in force, which is the set limit, or '-' for none
--          virtual         the present virtual time; virtual:<key> -> that of a key
--
-- What ties the keys: look_at() computes from its line, its use and its limits whether a key is ready.
-- Whoever changes one of these calls it, so no wake-up is lost. If lines and queue differ in their
-- number, one was lost: both are dropped, and the requests are asked for again. If something else was
-- lost, or the set limit or the number of those of keys has changed, all lines are looked at anew.
-- While a request waits, `uses` has its key, so it is missed although all holders were lost with it.
--
-- Within a key, requests are served in their order: one that is heavier than the limit of its key
-- holds up those behind it. One that is heavier than the set limit is passed over. With share, keys
-- with the same use for their weight take turns by their virtual time.

local shares = string.find(mode, '^fair%+share')

keyed = {}
local use = {}        -- of keys, read once in a call
local set_limits = {}  -- and the limits that are set for them

function keyed.parse_tail(request, tail)
  local limit, weight, patience, key = string.match(tail, '^:(%d*):([%d.]+):(%d+):([^:]*)$')
  request.key_limit, request.weight = tonumber(limit) or math.huge, tonumber(weight) or 1
  request.patience, request.key = tonumber(patience) or 0, key or ''
  return request
end
local function key_in(text)
  return string.match(text, '([^:]*)$')
end
-- The texts of *key* in lines, as a range: those behind *ticket*, if it is given.
local function line_of(key, ticket)
  return ticket and '(' .. key .. '!' .. ticket .. ';' or '[' .. key .. '!', '(' .. key .. '"'
end
local function padded(ticket)
  return string.format('%017.0f', ticket)
end

local function use_of(key)
  use[key] = use[key] or tonumber(call('ZSCORE', uses, key)) or 0
  return use[key]
end
-- The limit that is set for *key*, or *declared*.
local function limit_of(key, declared)
  if key == '' then return math.huge end
  if set_limits[key] == nil then set_limits[key] = limit_in(call('HGET', key_limits, key)) or false end
  return set_limits[key] or declared
end
function keyed.back_off_of(key)
  return state.key_back_offs and call('HGET', meta, 'back_off:' .. key)
end
-- Whether a request for *permits* of *key* fits under the limit of the key, which it declares as
-- *declared*.
local function fits_key(key, permits, declared)
  if key == '' then return true end
  local most = room_in(limit_of(key, declared), use_of(key), (ramp_of(keyed.back_off_of(key))))
  return use_of(key) + permits <= most
end
function keyed.is_full(request)
  return not fits_key(request.key, request.permits, request.key_limit)
end
-- Up to which ticket the requests of *key* are known to be heavier than the limit in force, as text.
local function passed_of(key)
  local known = state.passed and call('HGET', meta, 'passed:' .. key)
  local ticket, of = string.match(known or '', '^(%d+):(.*)$')
  return of == limit_in_force() and ticket or ''
end
local function forget_passed(key)
  if state.passed then call('HDEL', meta, 'passed:' .. key) end
end
-- The first request of *key* that is not heavier than the limit in force, and its ticket as text. The
-- ticket alone if the line has to be read on behind it, by another call.
local function head_of(key)
  local from, to = line_of(key)
  local last, known, count, read = '', nil, 1, 0
  repeat
    local texts = call('ZRANGEBYLEX', lines, from, to, 'LIMIT', 0, count)
    for _, text in ipairs(texts) do
      local ticket, found = string.match(string.sub(text, #key + 2), '^(%d+):(.*)$')
      local request = parse_request(found)
      if request.permits <= limit_for(request.declared) then return request, ticket end
      from, last = '(' .. text, ticket
    end
    if not known then
      known = passed_of(key)
      if known > last then from, last = line_of(key, known), known end
    end
    read, count = read + #texts, 100
  until #texts == 0 or read > MAX_SCANNED
  if last ~= known then
    allow_writes_at_maxmemory()
    note('passed:' .. key, last .. ':' .. limit_in_force(), 'passed', '1')
    state.passed = '1'
  end
  if read > MAX_SCANNED then return nil, last end
end
-- The first requests of *key*, *most* of them.
function keyed.first_of(key, most)
  local from, to = line_of(key)
  local texts = call('ZRANGEBYLEX', lines, from, to, 'LIMIT', 0, most)
  for i, text in ipairs(texts) do texts[i] = string.match(string.sub(text, #key + 2), ':(.*)$') end
  return texts
end
local function waits_of(key)
  return call('ZLEXCOUNT', lines, line_of(key))
end
local function is_ready(key)
  return call('ZSCORE', ready, key)
end

-- The present virtual time, and that of *key*: with the same use for their weight, the key with the
-- lowest has its turn.
local function virtual_times(key)
  local times = call('HMGET', meta, 'virtual', 'virtual:' .. key)
  return tonumber(times[1]) or 0, tonumber(times[2]) or 0
end
local function turn_of(key, virtual, place)
  return string.format('%023.6f:', virtual) .. padded(place) .. ':' .. key
end
local function note_virtual(key, virtual)
  note('virtual:' .. key, string.format('%.6f', virtual))
end
-- Takes *key* from the ready ones.
local function unready(key)
  local place = is_ready(key)
  if not place then return end
  call('ZREM', ready, key)
  if shares then
    local _, virtual = virtual_times(key)
    call('ZREM', turns, turn_of(key, virtual, place))
  end
end

-- Computes anew whether *key* is ready, and in which place. Where all lines are looked at later, `ready`
-- stays as it is until then, because that shows that it was lost.
local function look_at(key)
  local request, ticket
  if state.waiting > 0 and keyed.look_from ~= '*' then
    unready(key)
    request, ticket = head_of(key)
  end
  if not ticket then
    if use_of(key) == 0 and not keyed.back_off_of(key) and (state.waiting == 0 or waits_of(key) == 0) then
      call('ZREM', uses, key)
      if shares or state.passed then call('HDEL', meta, 'virtual:' .. key, 'passed:' .. key) end
    end
    return
  end
  request = request or { permits = 0, weight = 1, patience = 0 }  -- one that is still to be found
  if not fits_key(key, request.permits, request.key_limit or math.huge) then return end
  if shares then
    local present, virtual = virtual_times(key)
    if virtual < present then
      virtual = present
      note_virtual(key, virtual)
    end
    local patience = key == '' and request.lease or request.patience
    ticket = exact(ticket + 1000 * patience)
    local share = key == '' and 0 or use_of(key) / request.weight
    call('ZADD', turns, string.format('%.6f', share), turn_of(key, virtual, ticket))
    keep(turns, SLACK)
  end
  call('ZADD', ready, ticket, key)
end
local function look_at_all(changed)
  for key in pairs(changed) do look_at(key) end
end

-- Counts *permits* of *key* as in use, until write_uses() writes it.
function keyed.occupy(key, permits)
  use[key] = use_of(key) + permits
end
-- Writes the uses of the keys of *grants*, for at least *need* ms.
function keyed.write_uses(grants, need)
  for _, grant in ipairs(grants) do call('ZADD', uses, use[grant.key], grant.key) end
  keep(uses, need)
end
-- *freed* permits of keys are not in use any more. Where `uses` was lost, none is known to be.
function keyed.free(freed)
  for key, permits in pairs(freed) do
    local known = math.min(permits, use_of(key))
    if known > 0 then
      keyed.occupy(key, -known)
      call('ZADD', uses, use[key], key)
      look_at(key)
    end
  end
end
-- The uses of keys are *counted*.
function keyed.recount(counted)
  local known = call('ZRANGE', uses, 0, -1)
  use = counted
  for _, key in ipairs(known) do counted[key] = counted[key] or 0 end
  for key, permits in pairs(counted) do call('ZADD', uses, permits, key) end
  keep(uses, math.max(SLACK, call('PTTL', holders)))
  keyed.look_from = '*'
end
function keyed.keep(need)
  keep(uses, need)
end
-- *request* is granted, which moves the virtual time of its key on.
function keyed.advance(request)
  if not shares then return end
  local present, virtual = virtual_times(request.key)
  virtual = math.max(present, virtual)
  note('virtual', string.format('%.6f', virtual))
  unready(request.key)  -- once it is known that Redis takes what the call will write
  note_virtual(request.key, virtual + request.permits / request.weight)
end

-- Sets the limit of *key* to the text *value*, '' for none.
function keyed.set_limit(key, value)
  if value == '' then
    call('HDEL', key_limits, key)
  else
    call('HSET', key_limits, key, value)
  end
  set_limits[key] = nil
  -- The number of set limits may be right by now, which would hide that one was lost.
  if keyed.look_from == '*' then call('HDEL', meta, 'ready_for') end
  look_at(key)
end
-- Sets the back-off of *key*, nil for none. One that is over is forgotten.
function keyed.set_back_off(key, back_off)
  local _, changes = ramp_of(back_off)
  if changes then
    note('back_off:' .. key, back_off, 'key_back_offs', '1')
    call('ZADD', uses, use_of(key), key)
    call('ZADD', ramps, changes, key)
    state.key_back_offs = '1'
    for _, kept in ipairs({ uses, ramps }) do keep(kept, changes - now + SLACK) end
    keyed.ramps_change = math.min(keyed.ramps_change or math.huge, changes)
  else
    call('HDEL', meta, 'back_off:' .. key)
    call('ZREM', ramps, key)
  end
  look_at(key)
end
-- What a status says of keys: at most *most* that hold, wait or are paused, the ones with the most
-- permits first, from the one behind *after* on, and of those that *begin* so, as key, permits in use,
-- requests waiting, set limit or -1, and what is stored of that and of the back-off, ...; 1 if a request waits that only the overall limit delays; how
-- many limits are set. The permits of *expired* holders and requests of *dead* hubs do not count, by key.
function keyed.list(most, after, begin, expired, dead)
  local rows, read = {}, 0
  local last = call('ZCARD', uses) - 1
  local rank = after ~= '' and call('ZRANK', uses, after)
  if rank then last = rank - 1 end
  while #rows < 6 * most and last >= 0 and read < 5000 do
    local found = call('ZRANGE', uses, math.max(0, last - 99), last, 'WITHSCORES')
    last, read = last - 100, read + 100
    for i = #found - 1, 1, -2 do
      local key = found[i]
      if key ~= '' and string.sub(key, 1, #begin) == begin and #rows < 6 * most then
        local permits = found[i + 1] - (expired[key] or 0)
        local waits = waits_of(key) - (dead[key] or 0)
        local set, back_off = call('HGET', key_limits, key), keyed.back_off_of(key)
        local told = with_back_off(limit_in(set) or -1, back_off)
        local pauses = type(told) == 'table' and told[3] == 0
        if permits > 0 or waits > 0 or pauses then
          append(rows, { key, exact(permits), waits, told, set or '', back_off or '' })
        end
      end
    end
  end
  return { rows, call('ZCARD', ready) > 1 and 1 or 0, call('HLEN', key_limits) }
end
