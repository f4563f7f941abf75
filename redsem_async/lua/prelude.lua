-- prelude: holders, hubs, the counter and the back-off.

local MAX_PURGED = 500  -- ids that one call purges at most
local BAND = 2 ^ 42     -- above any expiry in ms: a score of `extra` is in a band of this width
-- Permits in use, above any limit, where it is not known of which keys they are, or which slots
-- they have: what says so was lost, and nothing is granted until these holders have ended.
local ALL_TAKEN = math.floor(2 ^ 53)

-- *number* as text with all its digits: tostring() keeps 14, and a token has 16.
local function exact(number)
  return string.format('%.0f', number)
end

-- Issues the next token or ticket. The caller saves the counter.
local function next_token()
  last = math.max(last + 1, now_us)
  return last
end
-- A back-off: no permit is granted before its pause ends. Then the ramp is how many permits may be
-- in use: 1, and with each step twice as many. It does not depend on a limit, because one that is
-- set or declared meanwhile may be higher. After 20 steps it is at a million, and over. The text of
-- a back-off is 'ends:began:step': when the pause ends, the counter when it began, and how long a
-- step is. Times are in ms.
--
-- Returns the ramp, and when it changes: 0 in the pause, math.huge and nil when it is over.
local function ramp_of(back_off)
  if not back_off then return math.huge end
  local ends, step = string.match(back_off, '^(%d+):%d+:(%d+)$')
  ends, step = tonumber(ends), tonumber(step)
  if now < ends then return 0, ends end
  local steps = math.floor((now - ends) / step)
  if steps >= 20 then return math.huge end
  return math.floor(2 ^ steps), ends + (steps + 1) * step
end
local ramp, ramp_changes = ramp_of(fields[7])
-- *limit* for a reply: where a back-off runs, {limit, ms until the ramp changes, ramp}.
local function with_back_off(limit, back_off)
  local of_limit, changes = ramp_of(back_off)
  return changes and { limit, changes - now, of_limit } or limit
end

-- By how many ms the counter leads the server's clock. Meta must not expire earlier.
local function counter_lead()
  return math.max(0, (last - wall_us) / 1000)
end
-- The lease and max_hold, if it is given, in 'lease_ms' or 'lease_ms:max_hold'.
local function parse_lease(text)
  local lease, max_hold = string.match(text, '^(%d+):?(%d*)$')
  return tonumber(lease), tonumber(max_hold)
end
-- How many ms ago the permit with *token* was granted, because tokens follow the clock.
local function held_for(token)
  return math.max(0, math.floor((now_us - token) / 1000))
end
-- Saves the counter and the mode, and keeps meta for at least *need* ms.
local function save_counter(need)
  last = math.max(last, now_us - 1)
  call('HSET', meta, 'mode', mode, 'layout', LAYOUT, 'counter', last)
  keep(meta, need + counter_lead() + SLACK)
end

-- Deletes the state of hubs that are dead for longer than SLACK, ten at a time.
local function forget_dead_hubs()
  for _, dead in ipairs(call('ZRANGEBYSCORE', hubs, '-inf', now - SLACK, 'LIMIT', 0, 10)) do
    call('ZREM', hubs, dead)
    -- The queue is looked through again, because it may have requests of this hub.
    call('HDEL', meta, dead, dead .. ':until', dead .. ':calls', dead .. ':changes',
      dead .. ':client', dead .. ':no_push', dead .. ':unreachable', 'looked')
    fields[14] = nil
  end
end

-- Keeps the caller's hub alive. It is kept alive for longer than it has to be, so that this seldom
-- writes. It also saves the counter, so that the counter never lags far behind the clock.
local function keep_hub_alive(lease)
  if last < now_us - STEP then
    last = now_us - 1
    call('HSET', meta, 'counter', last)
  end
  local need = liveness_timeout(lease)
  if alive_until < now + need then
    alive_until = now + math.floor(1.25 * need)
    call('HSET', meta, hub .. ':until', alive_until)
    call('ZADD', hubs, alive_until, hub)
    keep(hubs, need + SLACK)
    keep(meta, need + SLACK)
    forget_dead_hubs()
  end
end

-- Redis refuses a command that needs memory at maxmemory, unless the script has written before. So
-- a script that must work then begins with a removal, of an entry that does not exist.
local function allow_writes_at_maxmemory()
  call('ZREM', holders, '')
end

local set_limit      -- the set limit, if any
local waiting        -- requests in the queue
local holder_count   -- ids of holders, expired ones included
local top_power      -- highest power in `extra`; -1 when no holder is heavy

local keyed    -- functions of a semaphore whose requests have keys: see its prelude
local slotted  -- and of one whose permits have slots

-- The limit for a request that declares *declared*.
local function limit_for(declared)
  if not set_limit then return declared end
  return slotted and math.min(set_limit, declared) or set_limit
end

-- The set limit in the value of the key limit, if there is one. After a pause, the limit that it
-- found follows.
local function limit_in(value)
  return value and tonumber(string.match(value, '^%d+'))
end

-- Loads the state of the semaphore. It reads every key before the first write, because Redis does
-- not roll back a script that fails half-way (WRONGTYPE).
local function load_state()
  set_limit = limit_in(call('GET', limit))
  waiting = call('ZCARD', queue)
  local last_entry = call('ZRANGE', extra, -1, -1, 'WITHSCORES')
  top_power = last_entry[2] and math.floor(last_entry[2] / BAND) or -1
  holder_count = call('ZCARD', holders)
  call('HLEN', tokens)
  call('ZCARD', hubs)
  if keyed then keyed.check_types() end
  if slotted then slotted.check_types() end
end

-- A heavy holder has more than one permit. A holder of w permits has an entry '<id>:<power>' in
-- `extra` for each power of two in the sum w - 1, with the score expiry + power * BAND. So permits
-- in use are counted power by power, and an entry has an expiry even when other keys are lost.

-- Adds the entries of *id*, as score and member, to *entries*.
local function list_extra(entries, id, permits, expiry)
  local beyond, power = permits - 1, 0
  while beyond > 0 do
    if beyond % 2 == 1 then
      entries[#entries + 1] = exact(expiry + power * BAND)
      entries[#entries + 1] = id .. ':' .. power
      if top_power and power > top_power then top_power = power end
    end
    beyond, power = math.floor(beyond / 2), power + 1
  end
end
local function save_extra(entries)
  for from = 1, #entries, 2000 do
    call('ZADD', extra, unpack(entries, from, math.min(from + 1999, #entries)))
  end
end
local function add_extra(id, permits, expiry)
  local entries = {}
  list_extra(entries, id, permits, expiry)
  save_extra(entries)
end
-- The number of live permits beyond the first of each holder.
local function extra_permits()
  local count = 0
  for power = 0, top_power do
    local from = power * BAND
    local live = call('ZCOUNT', extra, '(' .. exact(from + now), '(' .. exact(from + BAND))
    count = count + math.floor(2 ^ power) * live
  end
  return count
end
-- The number of permits of *id*, a live holder.
local function permits_of(id)
  local permits, entries = 1, {}
  for power = 0, top_power do entries[power + 1] = id .. ':' .. power end
  if top_power < 0 then return permits end
  for i, score in ipairs(call('ZMSCORE', extra, unpack(entries))) do
    if score then permits = permits + math.floor(2 ^ (i - 1)) end
  end
  return permits
end

-- Removes *ids* from the holders, with their tokens and extra permits.
local function remove_holders(ids)
  holder_count = holder_count - call('ZREM', holders, unpack(ids))
  call('HDEL', tokens, unpack(ids))
  for power = 0, top_power do
    local entries = {}
    for i, id in ipairs(ids) do entries[i] = id .. ':' .. power end
    call('ZREM', extra, unpack(entries))
  end
  if slotted then slotted.removed(ids) end
  if keyed then keyed.removed(ids) end
end

local used          -- permits in use
local more = false  -- the call stopped early: the client has to call again

-- How many permits may be in use for a request under the limit *most*, while *in_use* are: in a ramp
-- no more than that. But the first request may have more, so that a heavy one can start, too.
local function room_in(most, in_use, of_ramp)
  return of_ramp > 0 and in_use == 0 and most or math.min(most, of_ramp)
end

-- Removes expired holders, and counts the permits in use.
local function purge()
  local expired = call('ZRANGEBYSCORE', holders, '-inf', now, 'LIMIT', 0, MAX_PURGED)
  if #expired > 0 then remove_holders(expired) end
  if #expired < MAX_PURGED then
    -- An entry of `extra` that is left has lost its holder, by eviction for example. It expires
    -- when the holder would have expired.
    for power = 0, top_power do
      local from = power * BAND
      local ended = call('ZRANGEBYSCORE', extra, exact(from), exact(from + now),
        'LIMIT', 0, MAX_PURGED)
      if #ended > 0 then call('ZREM', extra, unpack(ended)) end
    end
    used = holder_count + extra_permits()
  else
    more = true
    used = call('ZCOUNT', holders, '(' .. exact(now), '+inf') + extra_permits()
  end
  if fields[7] and not ramp_changes then
    call('HDEL', meta, 'back_off')
    fields[7] = nil
  end
  if keyed then used = keyed.used(used) end
  if slotted then used = slotted.used(used) end
end

-- Writes *grants*, each {id, token, lease, permits, tail of its request}, with one command for
-- each key.
local function write_grants(grants)
  if #grants == 0 then return end
  local scores, names, longest, entries = {}, {}, 0, {}
  for i, grant in ipairs(grants) do
    local id, token, lease, permits = unpack(grant)
    names[2 * i - 1], names[2 * i] = id, token
    scores[2 * i - 1], scores[2 * i] = now + lease, id
    list_extra(entries, id, permits, now + lease)
    longest = math.max(longest, lease)
  end
  save_extra(entries)
  call('HSET', tokens, unpack(names))
  call('ZADD', holders, unpack(scores))
  keep(tokens, longest)
  keep(holders, longest)
  if top_power >= 0 then keep(extra, longest) end
  if slotted then slotted.granted(grants, longest) end
  if keyed then keyed.granted(grants, longest) end
  save_counter(longest)
end

-- {token, ms left} if *id* is a live holder, with its slots if it has any; otherwise nil.
local function current_grant(id)
  local expiry = tonumber(call('ZSCORE', holders, id))
  if expiry and expiry > now then
    local token = call('HGET', tokens, id)
    if not token then
      -- The token was evicted or flushed. A new token is higher, so the order is kept.
      token = next_token()
      call('HSET', tokens, id, token)
      keep(tokens, expiry - now)
      save_counter(expiry - now)
    end
    return { token, expiry - now, slotted and slotted.of(id) }
  end
end

-- The high-water mark of the caller's hub: a number at or below it is never granted again, so
-- a delayed duplicate of an acquire cannot bring a released permit back.
local function raise_mark(number)
  if number > mark then
    mark = number
    call('HSET', meta, hub, number)
    keep_hub_alive(0)
  end
end

-- A hub numbers its operations that run at most once, and the highest number of each *kind* is stored.
-- That of a delayed duplicate, or of an operation that was made void, is not above it. Kinds are 'calls'
-- (adoptions and detaches) and 'changes' (set limits, deletions and back-offs).
local function already_ran(number, kind)
  return number <= (tonumber(call('HGET', meta, hub .. ':' .. kind)) or 0)
end
local function note_call(number, kind)
  call('HSET', meta, hub .. ':' .. kind, number)
  keep_hub_alive(0)
end

-- Has the next serve() return parked requests to the queue.
local function return_parked()
  returns = '-inf'
  call('HSET', meta, 'returns', returns)
end

-- The caller's hub had no subscriber for a push message, and is back: its requests, which were
-- parked, return to the queue.
local function clear_unreachable()
  if unreachable then
    call('HDEL', meta, hub .. ':unreachable')
    unreachable = nil
    return_parked()
  end
end

-- The reply to a hub that is not in meta and sent no facts about itself: it sends them and retries.
local function unknown_hub_error()
  return redis.error_reply('UNKNOWNHUB the hub has to send its facts')
end

-- Records facts about the caller's hub, and keeps it alive. A hub sends its facts on every new
-- connection and after UNKNOWNHUB; '' means that they have not changed.
local function record_hub(hub_info, no_push, lease)
  if hub_info ~= '' then
    call('HSET', meta, hub .. ':client', hub_info, hub .. ':no_push', no_push)
    -- Where meta was lost, it does not say any more that requests are parked.
    if unknown_hub and waiting > 0 then return_parked() end
  end
  clear_unreachable()
  keep_hub_alive(lease)
end

-- In how many ms the earliest holder expires, or the pause of a back-off ends; -1 if there is no
-- holder.
local function next_expiry()
  if ramp == 0 then return ramp_changes - now end
  local first = call('ZRANGE', holders, 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, first[2] - now) or -1
end

-- The ids that ARGV names from position *first* on, as 'number' or 'number:...', with *owner* as
-- their hub; and their highest number.
local function parse_ids(owner, first)
  local ids, highest = {}, 0
  for i = first, #ARGV do
    local number = ARGV[i]
    if not tonumber(number) then number = string.match(number, '^%d+') end
    ids[#ids + 1] = owner .. '.' .. number
    highest = math.max(highest, tonumber(number))
  end
  return ids, highest
end

-- The requests of an acquire, from position *first* of ARGV on, each {number as text, number,
-- permits, whether it waits, by how many us its ticket is lowered}. Raises `mark` to the highest
-- number; the caller writes it.
local function parse_requests(first)
  local requests = {}
  for i = first, #ARGV do
    local number, permits, waits, ahead = ARGV[i], '1', '1', ''
    if not tonumber(number) then
      number, permits, waits, ahead = string.match(number, '^(%d+):(%d+):([01]):?(%d*)$')
    end
    requests[#requests + 1] = {
      number, tonumber(number), tonumber(permits), waits == '1', 1000 * (tonumber(ahead) or 0),
    }
    mark = math.max(mark, tonumber(number))
  end
  return requests
end

-- *reply* with *answers* at its end.
local function append(reply, answers)
  local size = #reply
  for i = 1, #answers do reply[size + i] = answers[i] end
  return reply
end
