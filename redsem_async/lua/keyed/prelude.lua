-- keyed prelude: a request counts against the overall limit and against the limit of its key. One
-- that only its own key holds up does not block the requests of other keys.
--
-- A request has a tail, ':<key limit>:<weight>:<patience_ms>:<key>'. The key is encoded, so that
-- it has neither a colon nor a '!'; it is empty for a request without one, which has no limit of a
-- key. The key limit is '' for none.
--
-- keys     'l:<key>!<ticket>:<request>'  a request in the queue
--          'a:<key>!<ticket>:<request>'  a request that is parked
--          'g:<key>!<ticket>:<request>'  the same, and its hub is unreachable
--          'u:<key>!<power>:<id>'        2^power permits of a holder: what a key has in use is
--                                        counted, so it cannot differ from the holders
--          'i:<id>:<permits>:<key>'      the key of a holder, of each one
--          'r:<place>:<key>'             a key that is ready: its first request fits within the
--                                        limit of the key. Its place is the ticket of the request;
--                                        with `share`, the time when its patience ends: a lease
--                                        after that, where it has no key
--          's:<rank>:<key>'              the same in the order of `share`: by use for the weight,
--                                        virtual time, ticket
--          'k:<key>!<place>:<rank>'      where the key is among these two
--          'b:<key>!<time>:<back-off>'   the back-off of a key, until it is over
--          't:<time>:<key>'              when its ramp changes: the key is looked at then
--          'v:<key>!<virtual time>'      of a key that holds or waits, with `share`
--
-- A '!' ends a key, because it is less than any character of one: so a key comes before those that
-- begin with it. A key is taken from the ready ones when its first request does not fit, and looked
-- at again when anything about it changes: an id of it ends, its queue or its limit changes. So no
-- wake-up is lost. A request that is heavier than the limit of its key holds that key up, and no
-- other.
--
-- Each holder has one text 'i:', and each request in the queue one 'l:', 'a:' or 'g:'. Where the
-- numbers differ, a key of Redis was lost (evicted, deleted). Requests then leave the queue, and ask
-- anew with their next heartbeat. A holder without a text is not refreshed, and nothing is granted
-- until it has ended.

local NO_KEY = '::1:0:'  -- the tail of a request without a key
-- For a request with a key a call does about ten times as much as for one without.
MAX_PURGED, MAX_SCANNED, MAX_SERVED = 50, 100, 16
local MAX_DROPPED = 100  -- requests that look_at() drops in one call, about

keyed = {}
keyed.shares = string.find(mode, 'share', 1, true)

-- The texts in `keys` that begin with *prefix*, as a range. Its last character is ':' or '!'.
local function beginning_with(prefix)
  local last = string.sub(prefix, -1) == ':' and ';' or '"'
  return '[' .. prefix, '(' .. string.sub(prefix, 1, -2) .. last
end
-- The first of them.
local function first_with(prefix)
  local from, to = beginning_with(prefix)
  return call('ZRANGEBYLEX', keys, from, to, 'LIMIT', 0, 1)[1]
end
-- How many there are.
local function count_with(prefix)
  return call('ZLEXCOUNT', keys, beginning_with(prefix))
end
local function add_texts(texts)
  if #texts == 0 then return end
  local entries = {}
  for i, text in ipairs(texts) do entries[2 * i - 1], entries[2 * i] = 0, text end
  call('ZADD', keys, unpack(entries))
end

keyed.tails = {}  -- what parse_tail() has read

-- What the tail of a request says: key limit, weight, patience in ms, key.
local function parse_tail(request)
  local read = keyed.tails[request]
  if not read then
    local limit, weight, patience, key = string.match(request, ':(%d*):([%d.]+):(%d+):([^:]*)$')
    read = {
      tonumber(limit) or math.huge, tonumber(weight) or 1, tonumber(patience) or 0, key or '',
    }
    keyed.tails[request] = read
  end
  return read[1], read[2], read[3], read[4]
end
local function padded(ticket)
  return string.format('%017.0f', ticket)
end

local uses = {}  -- of keys, read once in a call, and the limits that are set for them
keyed.limits = {}

-- The limit of *key* for a request that declares *declared*.
local function limit_of(key, declared)
  if key == '' then return math.huge end
  if keyed.limits[key] == nil then keyed.limits[key] = call('HGET', key_limits, key) end
  return tonumber(keyed.limits[key]) or declared
end
-- The back-off of *key*, if it has any, and when it is to be looked at.
function keyed.back_off_of(key)
  local text = fields[9] and key ~= '' and first_with('b:' .. key .. '!')
  if not text then return end
  local at, back_off = string.match(string.sub(text, #key + 4), '^(%d+):(.*)$')
  return back_off, at
end
-- Permits that *key* has in use.
local function use_of(key)
  if key == '' then return 0 end
  if not uses[key] then
    local use = 0
    for power = 0, top_power + 1 do
      use = use + math.floor(2 ^ power) * count_with(string.format('u:%s!%02d:', key, power))
    end
    uses[key] = use
  end
  return uses[key]
end

-- How many permits of *key* may be in use now, for a request that declares *declared*.
function keyed.room_of(key, declared)
  return room_in(limit_of(key, declared), use_of(key), (ramp_of((keyed.back_off_of(key)))))
end

-- How many requests of *key* are in queue, without those whose hubs are unreachable.
local function waits_of(key)
  return count_with('l:' .. key .. '!') + count_with('a:' .. key .. '!')
end

-- The virtual time of *key*: by it, keys with the same use for their weight take turns. That of the
-- key that was served last is the present one.
local function virtual_time_of(key)
  local last_served = keyed.virtual_time or tonumber(call('HGET', meta, 'virtual')) or 0
  keyed.virtual_time = last_served
  local text = first_with('v:' .. key .. '!')
  return math.max(last_served, text and tonumber(string.sub(text, #key + 4)) or 0), text
end
-- *key* got permits.
function keyed.advance(key, permits, weight)
  local start, text = virtual_time_of(key)
  keyed.virtual_time = start
  call('HSET', meta, 'virtual', string.format('%.6f', start))
  if text then call('ZREM', keys, text) end
  add_texts({ string.format('v:%s!%.6f', key, start + permits / weight) })
end

-- Takes *key* from the ready ones.
function keyed.unready(key)
  local text = first_with('k:' .. key .. '!')
  if not text then return end
  local place, rank = string.match(string.sub(text, #key + 4), '^(%d+):(.*)$')
  call('ZREM', keys, text, 'r:' .. place .. ':' .. key, 's:' .. rank .. ':' .. key)
end

-- The text of *request* in `keys`, and its key. *ticket* is its score in the queue.
local function text_of(request, ticket)
  local kind = ticket < -PARKED and 'g:' or ticket < 0 and 'a:' or 'l:'
  local _, _, _, key = parse_tail(request)
  return kind .. key .. '!' .. padded(ticket_of(ticket)) .. ':' .. request, key
end

-- The first request of *key* that is not parked, and its ticket.
local function head_of(key)
  local text = first_with('l:' .. key .. '!')
  if not text then return end
  local ticket, request = string.match(string.sub(text, #key + 4), '^(%d+):(.*)$')
  return request, tonumber(ticket), text
end

local dropped = 0  -- requests that this call dropped from the heads of lines

-- Looks at *key* anew: whether it is ready, and in which place.
local function look_at(key)
  keyed.unready(key)
  local request, ticket, text = head_of(key)
  while request and dropped < MAX_DROPPED do
    if hub_state(string.match(request, '^%x+')).alive_until > now then break end
    call('ZREM', keys, text)
    waiting = waiting - call('ZREM', queue, request)
    dropped = dropped + 1
    request, ticket, text = head_of(key)
  end
  if not request then
    if keyed.shares and use_of(key) == 0 then
      local _, old = virtual_time_of(key)
      if old then call('ZREM', keys, old) end
    end
    return
  end
  local _, _, lease, _, permits = parse_request(request)
  local declared, weight, patience = parse_tail(request)
  local fits = use_of(key) + permits <= keyed.room_of(key, declared)
  -- One that was not looked at may be of a dead hub: serve() drops it.
  if not fits and dropped < MAX_DROPPED then return end
  local place, rank = padded(ticket), ''
  if keyed.shares then
    if key == '' then patience = lease end
    rank = string.format('%023.6f:%023.6f:', use_of(key) / weight, (virtual_time_of(key))) .. place
    place = padded(ticket + 1000 * patience)
  end
  local texts = { 'r:' .. place .. ':' .. key, 'k:' .. key .. '!' .. place .. ':' .. rank }
  if keyed.shares then texts[3] = 's:' .. rank .. ':' .. key end
  add_texts(texts)
end
local function look_at_all(changed)
  for key in pairs(changed) do look_at(key) end
end

-- Removes *requests* from the queue.
local function leave_queue(requests)
  local changed, texts = {}, {}
  for i, ticket in ipairs(call('ZMSCORE', queue, unpack(requests))) do
    if ticket then
      local text, key = text_of(requests[i], tonumber(ticket))
      texts[#texts + 1] = text
      changed[key] = true
    end
  end
  if #texts > 0 then call('ZREM', keys, unpack(texts)) end
  waiting = waiting - call('ZREM', queue, unpack(requests))
  look_at_all(changed)
end

-- Writes the texts of *entries*, ticket and request in turn, which have joined the queue or come
-- back to it.
local function write_texts(entries)
  local changed, texts = {}, {}
  for i = 1, #entries, 2 do
    local text, key = text_of(entries[i + 1], tonumber(entries[i]))
    texts[#texts + 1] = text
    changed[key] = true
  end
  add_texts(texts)
  return changed, texts
end

-- Adds *entries*, ticket and request in turn, to the queue.
local function join_queue(entries)
  call('ZADD', queue, unpack(entries))
  look_at_all((write_texts(entries)))
end

-- Parks *requests*, as park() does. Returns their keys, which are to be looked at.
function keyed.park(requests)
  local changed, texts = {}, {}
  for i, ticket in ipairs(call('ZMSCORE', queue, unpack(requests))) do
    local text, key = text_of(requests[i], tonumber(ticket))
    texts[i] = text
    changed[key] = true
  end
  local parked = {}
  for i, text in ipairs(texts) do
    local state = hub_state((parse_request(requests[i])))
    parked[i] = (state.unreachable and 'g' or 'a') .. string.sub(text, 2)
  end
  add_texts(parked)  -- first: without a text, Redis would drop the key, and its expiry
  if #texts > 0 then call('ZREM', keys, unpack(texts)) end
  park(requests)
  return changed
end

-- Writes the texts of requests that were parked and are back in the queue, *back*: request and
-- ticket in turn.
function keyed.return_texts(back)
  local entries = {}
  for i = 1, #back, 2 do entries[i], entries[i + 1] = back[i + 1], back[i] end
  local changed, texts = write_texts(entries)
  for i = #texts, 1, -1 do
    texts[2 * i] = 'g' .. string.sub(texts[i], 2)
    texts[2 * i - 1] = 'a' .. string.sub(texts[i], 2)
  end
  call('ZREM', keys, unpack(texts))
  look_at_all(changed)
end
local function keep_queue(need)
  keep(queue, need)
  keep(keys, need)
end

-- The ready key whose turn it is.
local function next_key()
  local first = first_with('r:')
  if not first then return end
  local place, key = string.match(first, '^r:(%d+):(.*)$')
  if not keyed.shares or now_us > tonumber(place) then return key end
  return string.match(first_with('s:'), '([^:]*)$')
end

function keyed.check_types()
  call('ZCARD', keys)
  call('HLEN', key_limits)
end

function keyed.removed(ids)
  local changed = {}
  for _, id in ipairs(ids) do
    local text = first_with('i:' .. id .. ':')
    if text then
      local permits, key = string.match(string.sub(text, #id + 4), '^(%d+):(.*)$')
      call('ZREM', keys, text)
      local left, power = key == '' and 0 or tonumber(permits), 0
      while left > 0 do
        if left % 2 == 1 then call('ZREM', keys, string.format('u:%s!%02d:%s', key, power, id)) end
        left, power = math.floor(left / 2), power + 1
      end
      uses[key] = nil
      changed[key] = key ~= '' or nil
    end
  end
  look_at_all(changed)
end

do
  local MAX_DROPPED_TEXTS = 200  -- in one call

  -- Removes what `keys` has of ids that are no holders: the holders were evicted, for example.
  local function drop_orphans(count)
    local first = now % math.max(1, count - MAX_PURGED + 1)  -- each part is looked at some time
    local orphans = {}
    for _, text in ipairs(call('ZRANGEBYLEX', keys, '[i:', '(i;', 'LIMIT', first, MAX_PURGED)) do
      local id = string.match(text, '^i:([^:]*)')
      if not call('ZSCORE', holders, id) then orphans[#orphans + 1] = id end
    end
    keyed.removed(orphans)
  end

  -- If the texts are not those of the queue's requests, drops both. The texts that are counted go
  -- last, so that a later call finds what this one leaves.
  local function drop_lost_queue()
    if count_with('l:') + count_with('a:') + count_with('g:') == waiting then return end
    call('UNLINK', queue)
    waiting = 0
    local texts = {}
    for kind in string.gmatch('ksrvlag', '.') do
      local first, last = beginning_with(kind .. ':')
      append(texts,
        call('ZRANGEBYLEX', keys, first, last, 'LIMIT', 0, MAX_DROPPED_TEXTS - #texts))
    end
    if #texts > 0 then call('ZREM', keys, unpack(texts)) end
    more = more or #texts == MAX_DROPPED_TEXTS
  end

  -- Looks at keys where the ramp of a back-off has changed, and forgets those that are over.
  local function follow_ramps()
    if not fields[9] then return end
    local due = call('ZRANGEBYLEX', keys, '[t:', '(t:' .. padded(now + 1), 'LIMIT', 0, MAX_PURGED)
    more = more or #due == MAX_PURGED
    for _, text in ipairs(due) do
      local key = string.match(text, '^t:%d+:(.*)$')
      keyed.set_back_off(key, (keyed.back_off_of(key)))
    end
    local first = first_with('t:')
    if first then
      keys_change = tonumber(string.match(first, '%d+'))
    else
      call('HDEL', meta, 'back_offs')
      fields[9] = nil
    end
  end

  -- The permits in use, where *in_use* are counted.
  function keyed.used(in_use)
    drop_lost_queue()
    follow_ramps()
    local known = count_with('i:')
    if known > holder_count then drop_orphans(known) end
    return known < holder_count and ALL_TAKEN or in_use
  end
end

-- Whether the key of the holder *id* was lost.
function keyed.lost(id)
  if keyed.all_known == nil then
    keyed.all_known = count_with('i:') >= call('ZCARD', holders)
  end
  return not keyed.all_known and not first_with('i:' .. id .. ':')
end

-- The key of the holder *id*, and the tail of a request with that key.
function keyed.key_of(id)
  local text = first_with('i:' .. id .. ':')
  return text and string.match(text, '([^:]*)$') or ''
end
function keyed.tail_of(id)
  return NO_KEY .. keyed.key_of(id)
end

function keyed.granted(grants, longest)
  local changed, texts = {}, {}
  for _, grant in ipairs(grants) do
    local id, _, _, permits, tail = unpack(grant)
    local _, _, _, key = parse_tail(tail)
    texts[#texts + 1] = 'i:' .. id .. ':' .. exact(permits) .. ':' .. key
    if key ~= '' then
      local left, power = permits, 0
      while left > 0 do
        if left % 2 == 1 then
          texts[#texts + 1] = string.format('u:%s!%02d:%s', key, power, id)
        end
        left, power = math.floor(left / 2), power + 1
      end
      changed[key] = true
    end
  end
  add_texts(texts)
  keep(keys, longest)
  if keyed.serving then return end  -- serve() looks at the keys of its grants itself
  for key in pairs(changed) do uses[key] = nil end
  look_at_all(changed)
end

-- Looks at the keys of the caller's requests, which ARGV names from position *first* on, if the
-- hub of the first request is dead: nothing else may happen to that key for long. If it is alive,
-- the reply tells until when at least.
function keyed.look_at_heads(first)
  if waiting == 0 then return end
  local seen = {}
  for i = first, #ARGV do
    local _, _, _, key = parse_tail(ARGV[i])
    if not seen[key] then
      seen[key] = true
      local request = head_of(key)
      local owner = request and string.match(request, '^%x+')
      if owner and owner ~= hub and not first_with('k:' .. key .. '!') then
        local alive_until = hub_state(owner).alive_until
        if alive_until <= now then
          look_at(key)
        else
          keys_change = math.min(keys_change, alive_until)
        end
      end
    end
  end
end

-- Of how many keys the limit is set.
function keyed.limits_set()
  return call('HLEN', key_limits)
end
-- Whether a request waits that only the overall limit holds up.
function keyed.queue_is_blocked()
  return first_with('r:') ~= nil
end

do
  local MAX_ENDED = 500  -- expired holders, and keys of dead requests, that list() leaves out

  -- Whether *one* comes before *other* by their bytes, as in a ZSET; `<` goes by the server's locale.
  local function precedes(one, other)
    for i = 1, math.min(#one, #other) do
      local byte, beside = string.byte(one, i), string.byte(other, i)
      if byte ~= beside then return byte < beside end
    end
    return #one < #other
  end

  -- Lists at most *most* keys that hold, wait or are paused by a back-off, in the order of their
  -- texts, the first one after *after*: key, permits in use, requests waiting, set limit or -1, ...
  function keyed.list(most, after)
    local expired = {}  -- permits of holders that nothing has removed yet
    for _, id in ipairs(call('ZRANGEBYSCORE', holders, '-inf', now, 'LIMIT', 0, MAX_ENDED)) do
      local key = keyed.key_of(id)
      expired[key] = (expired[key] or 0) + permits_of(id)
    end
    local dead = {}  -- requests of hubs that are dead
    for _, request in ipairs(dead_requests) do
      local key = string.match(request, '^.*:(.*)$')
      dead[key] = (dead[key] or 0) + 1
    end
    local rows, ended = {}, 0
    while #rows < 4 * most do
      local key
      for kind in string.gmatch('ulab', '.') do
        -- Requests without a key come first: all their texts are below '":'.
        local from = '(' .. kind .. ':' .. after .. '"'
        local text = call('ZRANGEBYLEX', keys, from, '(' .. kind .. ';', 'LIMIT', 0, 1)[1]
        local found = text and string.match(text, '^.:([^!]*)')
        if found and (not key or precedes(found, key)) then key = found end
      end
      if not key then break end
      local use, waits = use_of(key) - (expired[key] or 0), waits_of(key) - (dead[key] or 0)
      local set_limit = call('HGET', key_limits, key) or '-1'
      local told = with_back_off(set_limit, (keyed.back_off_of(key)))
      local pauses = type(told) == 'table' and told[3] == 0
      if use > 0 or waits > 0 or pauses or ended == MAX_ENDED then
        rows[#rows + 1] = key
        rows[#rows + 1] = exact(use)
        rows[#rows + 1] = waits
        rows[#rows + 1] = told
      else
        ended = ended + 1
      end
      after = key
    end
    return rows
  end
end

function keyed.keep(need)
  keep(keys, need)
end
function keyed.delete()
  call('UNLINK', keys, key_limits)
  call('HDEL', meta, 'virtual', 'back_offs')
end
-- Sets the limit of *key*, '' for none.
function keyed.set_limit(key, limit)
  if limit == '' then
    call('HDEL', key_limits, key)
  else
    call('HSET', key_limits, key, limit)
  end
  keyed.limits[key] = nil
  look_at(key)
end

-- Sets the back-off of *key*, nil for none. One that is over is forgotten.
function keyed.set_back_off(key, back_off)
  local old, at = keyed.back_off_of(key)
  local before = old and { 'b:' .. key .. '!' .. at .. ':' .. old, 't:' .. at .. ':' .. key } or {}
  local _, changes = ramp_of(back_off)
  local after = {}
  if changes then
    at = padded(changes)
    after = { 'b:' .. key .. '!' .. at .. ':' .. back_off, 't:' .. at .. ':' .. key }
    keys_change = math.min(keys_change, changes)
  end
  add_texts(after)  -- first: without a text, Redis would drop the key, and its expiry
  for i, text in ipairs(before) do
    if text ~= after[i] then call('ZREM', keys, text) end
  end
  look_at(key)
end

-- Drops requests of the dead, and parks those of hubs that are unreachable.
local function drop_and_park()
  local dead, unreached = look_through()
  if #dead > 0 then leave_queue(dead) end
  if #unreached > 0 then look_at_all(keyed.park(unreached)) end
end

-- Grants requests while there is room, in the order of their tickets, or with `share` to the key
-- with the fewest permits in use for its weight. The first request that the overall limit holds up
-- blocks all others.
local function serve()
  clear_unreachable()
  if waiting == 0 then return end
  hub_states[hub] = nil  -- the call may have kept its hub alive since that was read
  drop_and_park()
  if set_limit == 0 then return end
  notice_lost_limit()
  local all_back, back = bring_back()
  if #back > 0 then keyed.return_texts(back) end
  if not all_back then
    open, more = false, true
    return
  end
  local granted, blocked, undelivered = 0, false, {}
  repeat
    local recipients, by_owner, tickets = {}, {}, {}
    local steps = 0
    blocked, head_alive_until = false, nil
    while granted < MAX_SERVED and steps < MAX_SCANNED and dropped < MAX_DROPPED do
      steps = steps + 1
      local key = next_key()
      if not key then break end
      local request, ticket, text = head_of(key)
      local owner, number, lease, declared, permits = parse_request(request)
      local state, effective_limit = hub_state(owner), limit_for(declared)
      if state.alive_until <= now then
        leave_queue({ request })
      elseif use_of(key) + permits > keyed.room_of(key, (parse_tail(request))) then
        look_at(key)  -- which it was not yet
      elseif state.unreachable or permits > effective_limit then
        look_at_all(keyed.park({ request }))
      elseif used + permits > room_in(effective_limit, used, ramp) then
        blocked = true
        head_alive_until = state.alive_until
        break
      else
        used = used + permits
        granted = granted + 1
        if key ~= '' then uses[key] = use_of(key) + permits end
        tickets[request] = exact(ticket)
        if keyed.shares then
          local _, weight = parse_tail(request)
          keyed.advance(key, permits, weight)
        end
        local recipient = by_owner[owner]
        if not recipient then
          recipient = { owner = owner, grants = {}, numbers = {}, requests = {}, permits = 0 }
          by_owner[owner] = recipient
          recipients[#recipients + 1] = recipient
        end
        recipient.grants[#recipient.grants + 1] = {
          owner .. '.' .. number, next_token(), lease, permits, request,
        }
        if slotted then slotted.assign(owner .. '.' .. number, permits) end
        recipient.numbers[#recipient.numbers + 1] = number
        recipient.requests[#recipient.requests + 1] = request
        recipient.permits = recipient.permits + permits
        call('ZREM', keys, text)
        waiting = waiting - call('ZREM', queue, request)
        look_at(key)
      end
      head_alive_until = nil
    end
    local stopped = granted >= MAX_SERVED or steps >= MAX_SCANNED or dropped >= MAX_DROPPED
    local grants, _, lost_permits
    grants, _, lost_permits, undelivered = deliver_grants(recipients)
    used = used - lost_permits
    if #undelivered > 0 then
      local back_in_line, need = {}, 0
      for _, request in ipairs(undelivered) do
        local _, _, _, key = parse_tail(request)
        local owner, _, _, _, permits = parse_request(request)
        need = math.max(need, hub_state(owner).alive_until - now)
        if key ~= '' then uses[key] = uses[key] - permits end
        back_in_line[#back_in_line + 1] = tickets[request]
        back_in_line[#back_in_line + 1] = request
      end
      call('ZADD', queue, unpack(back_in_line))
      waiting = waiting + #undelivered
      local changed = keyed.park(undelivered)
      keep_queue(need)  -- it may have been empty, and then it is another key
      look_at_all(changed)
    end
    keyed.serving = true
    write_grants(grants)
    keyed.serving = false
    if #undelivered > 0 then drop_and_park() end  -- they may be the heads of other keys, too
    if stopped then
      open, more = false, true
      return
    end
  until #undelivered == 0
  if blocked then open = false end
end

-- No request passes an older one because its hub releases.
local function serve_own() end

-- Of the keys of requests that this call adds to the queue: what holds up the first, and how many.
keyed.blocked_by, keyed.added = {}, {}

-- What a new request has to wait for: 'limit', 'key', or nothing.
local function held_up(permits, effective_limit, tail)
  local declared, weight, _, key = parse_tail(tail)
  if key ~= '' then
    if keyed.blocked_by[key] then return keyed.blocked_by[key] end
    if waiting > 0 and head_of(key) and not first_with('k:' .. key .. '!') then return 'key' end
    if use_of(key) + permits > keyed.room_of(key, declared) then return 'key' end
  end
  if not open or used + permits > room_in(effective_limit, used, ramp) then
    return 'limit'
  end
  if key == '' then return end  -- which has no virtual time, because it does not wait
  uses[key] = use_of(key) + permits
  if keyed.shares then keyed.advance(key, permits, weight) end
end
-- A new request is added to the queue at the end of the call; *too_heavy*: it is to be parked.
function keyed.queued(blocked_by, tail, too_heavy)
  local _, _, _, key = parse_tail(tail)
  if not too_heavy then keyed.blocked_by[key] = keyed.blocked_by[key] or blocked_by end
  keyed.added[key] = (keyed.added[key] or 0) + 1
end

local function queue_is_full(max_waiters, tail)
  local most, most_of_key = string.match(max_waiters, '^(-?%d+):?(%d*)$')
  most, most_of_key = tonumber(most), tonumber(most_of_key)
  if most >= 0 and count_living() >= most then return -3 end
  local _, _, _, key = parse_tail(tail)
  return most_of_key and key ~= ''
    and waits_of(key) + (keyed.added[key] or 0) >= most_of_key and -6
end

local function queue_answer(tail)
  local _, _, _, key = parse_tail(tail)
  return first_with('k:' .. key .. '!') and 0 or -4
end

-- What a reply says of the keys of those requests, which ARGV names from position *first* on, that
-- are not served, as *answers* say: of how many keys the first request fits within the limit of the
-- key; then key, how many of its requests wait, and the limit that is set for it or -1, ...
function keyed.queues_of(first, answers)
  local queues, seen = {}, { [''] = true }
  for i = first, #ARGV do
    local _, _, _, key = parse_tail(ARGV[i])
    local answer = answers[i - first + 1]
    if not seen[key] and (answer == 0 or type(answer) == 'number' and answer < -1) then
      seen[key] = true
      if #queues == 0 then queues[1] = count_with('r:') end
      local told = with_back_off(limit_of(key, -1), (keyed.back_off_of(key)))
      append(queues, { key, count_with('l:' .. key .. '!'), told })
    end
  end
  return queues
end

-- The requests of an acquire, as in the prelude. Those with a key are 'number:permits:waits:ahead'
-- and the tail.
local function parse_requests(first)
  local requests = {}
  for i = first, #ARGV do
    local number, permits, waits, ahead, tail = ARGV[i], '1', '1', '', NO_KEY
    if not tonumber(number) then
      number, permits, waits, ahead, tail =
        string.match(number, '^(%d+):(%d+):([01]):?(%d*)(.*)$')
      if tail == '' then tail = NO_KEY end
    end
    requests[#requests + 1] = {
      number, tonumber(number), tonumber(permits), waits == '1', 1000 * (tonumber(ahead) or 0),
      tail,
    }
    mark = math.max(mark, tonumber(number))
  end
  return requests
end

-- Removes requests of dead hubs from the queue. Returns how many.
local function remove_dead_waiters()
  local leaving = {}
  for _, request in ipairs(call('ZRANGE', queue, 0, MAX_LISTED - 1)) do
    local owner = string.match(request, '^%x+')
    if hub_state(owner).alive_until <= now then
      leaving[#leaving + 1] = request
      more = #leaving == MAX_SCANNED
      if more then break end
    end
  end
  if #leaving == 0 then return 0 end
  local before = waiting
  leave_queue(leaving)
  return before - waiting
end
