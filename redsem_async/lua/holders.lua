-- holders: who holds permits, and how many are in use.
--
-- The facts of a holder are '<token>:<permits>:<slots>:<key>', with slots as 'index+index' and the key
-- encoded; both may be empty. What ties the keys:
--
--   1. every holder has facts, and nobody else. Where facts are missing they were lost (evicted,
--      deleted), all of them: such a holder is told at its next refresh that it holds nothing, and
--      nothing is granted until these holders have ended
--   2. meta.heavy and the use of each key are sums over the facts, changed by the function that adds
--      or removes a holder. Facts are written before the sums and the holder, and removed after them,
--      so that a call which failed half-way leaves facts without a holder. On any doubt, facts
--      without a holder are dropped, and the sums are counted anew

local MAX_PURGED = 500  -- ids that one call purges at most
local ALL_TAKEN = math.floor(2 ^ 53)  -- permits in use, above any limit, where facts were lost

-- What this call knows of the semaphore, and changes.
local state = {
  mode = stored_mode, counter = counter, heavy = heavy, back_off = back_off, passed = passed,
  looked = looked, mark = highest,
  silent = {},  -- hubs that did not refresh a grant by message until it ended
}
local keyed    -- functions of a semaphore whose requests have keys: see keyed.lua
local slotted  -- and of one whose permits have slots: see slots.lua
local rated    -- and of one with rates: see buckets.lua and rate.lua

-- *number* as text with all its digits: tostring() keeps 14, and a token has 16.
local function exact(number)
  return string.format('%.0f', number)
end
-- *list* with *more* at its end.
local function append(list, more)
  local size = #list
  for i = 1, #more do list[size + i] = more[i] end
  return list
end

-- Issues the next token or ticket. The caller saves the counter.
local function next_token()
  state.counter = token_after(state.counter)
  return state.counter
end
-- By how many ms the counter leads the server's clock. Meta must not expire earlier.
local function counter_lead()
  return math.max(0, (state.counter - wall_us) / 1000)
end
-- Writes fields of meta, which is never left without an expiry.
local function note(...)
  call('HSET', meta, ...)
  if not state.mode then keep(meta, SLACK) end
end
-- Saves the counter with *more* fields, and keeps meta for at least *need* ms. With the first counter
-- comes the mode. Where a sum over the facts is in doubt, that is left to the call that counts it anew:
-- the mode would hide that meta was lost.
local function save_counter(need, ...)
  state.counter = math.max(state.counter, now_us - 1)
  if state.mode or state.doubtful then
    call('HSET', meta, 'counter', state.counter, ...)
  else
    call('HSET', meta, 'mode', mode, 'layout', LAYOUT, 'counter', state.counter, ...)
  end
  keep(meta, need + counter_lead() + SLACK)
end

-- Redis refuses a command that needs memory at maxmemory, unless the script has written before. So
-- a script that must work then begins with a removal, of an entry that does not exist.
local function allow_writes_at_maxmemory()
  call('ZREM', holders, '')
end

-- The limit in the value of a key that keeps one: '<limit>:<limit before a pause>:<since>:<by>'.
local function limit_in(value)
  return value and tonumber(string.match(value, '^%d+'))
end
-- The set limit as text, '-' for none.
local function limit_in_force()
  return state.set_limit and exact(state.set_limit) or '-'
end
-- The limit for a request that declares *declared*.
local function limit_for(declared)
  if not state.set_limit then return declared end
  return slotted and math.min(state.set_limit, declared) or state.set_limit
end

-- Loads the state of the semaphore. It reads every key before the first write, because Redis does
-- not roll back a script that fails half-way (WRONGTYPE). A doubt stays until it is counted anew, though
-- the state is loaded twice.
local function load_state()
  state.set_limit = limit_in(call('GET', limit))
  state.waiting = call('ZCARD', queue)
  state.holding = call('ZCARD', holders)  -- ids, expired ones included
  call('ZCARD', hubs)
  local count = call('HLEN', facts)
  state.facts_lost = count < state.holding
  state.doubtful = state.doubtful or count > state.holding or state.holding > 0 and not state.mode
    or state.holding == 0 and state.heavy > 0
  if state.holding == 0 then state.heavy = 0 end
  state.ramp, state.ramp_changes = ramp_of(state.back_off)
  if keyed then keyed.load_state() end
  if rated then rated.load_state() end
end

-- Drops facts without a holder, and counts anew what is a sum over the others.
local function recount()
  local uses, all, count = {}, call('HGETALL', facts), 0
  state.heavy = 0
  for i = 1, #all, 2 do
    if call('ZSCORE', holders, all[i]) then
      local permits, key = string.match(all[i + 1], '^%d+:(%d+):[^:]*:(.*)$')
      state.heavy = state.heavy + permits - 1
      uses[key] = (uses[key] or 0) + permits
      count = count + 1
    else
      call('HDEL', facts, all[i])
    end
  end
  state.facts_lost = count < state.holding
  state.doubtful = false
  save_counter(0, 'heavy', state.heavy)
  if keyed then keyed.recount(uses) end
end

-- Removes *ids*, which are not equal to each other, from the holders.
local function remove_holders(ids)
  local known = (state.heavy > 0 or keyed) and call('HMGET', facts, unpack(ids)) or {}
  state.holding = state.holding - call('ZREM', holders, unpack(ids))
  local heavy, uses = 0, {}
  for _, text in ipairs(known) do
    local permits, key = string.match(text or '', '^%d+:(%d+):[^:]*:(.*)$')
    if permits then
      heavy = heavy + permits - 1
      uses[key] = (uses[key] or 0) + permits
    end
  end
  if heavy > 0 then
    state.heavy = math.max(0, state.heavy - heavy)
    note('heavy', state.heavy)
  end
  if slotted then slotted.forget() end
  if keyed then keyed.free(uses) end
  call('HDEL', facts, unpack(ids))
end

-- Removes expired holders, and counts the permits in use. Those that are left to a later call count.
local function purge()
  local rows = call('ZRANGEBYSCORE', holders, '-inf', now, 'WITHSCORES', 'LIMIT', 0, MAX_PURGED)
  local expired = {}
  for i = 1, #rows, 2 do
    expired[#expired + 1] = rows[i]
    if rows[i + 1] % 1 > 0 then state.silent[string.match(rows[i], '^%x+')] = true end
  end
  if #expired > 0 then remove_holders(expired) end
  state.more = state.more or #expired == MAX_PURGED  -- the client has to call again
  if state.doubtful or state.facts_lost and state.holding == 0 then recount() end
  local lost = state.facts_lost and state.holding > 0
  state.used = lost and ALL_TAKEN or state.holding + state.heavy
  if state.back_off and not state.ramp_changes then
    call('HDEL', meta, 'back_off')
    state.back_off = nil
  end
  if keyed then keyed.follow_ramps() end
end

-- Counts the permits of *grant* as in use.
local function occupy(grant)
  state.used = state.used + grant.permits
  if keyed then keyed.occupy(grant.key, grant.permits) end
  if rated then rated.spend(grant.costs, 1) end
end
-- Writes *grants*, whose permits are counted as in use, with one command for each key. The counter is
-- first, so that no token is issued again if a later command fails.
local function write_grants(grants)
  if #grants == 0 then return end
  local scores, texts, longest, heavy = {}, {}, 0, 0
  for i, grant in ipairs(grants) do
    if slotted then slotted.give(grant) end
    local earlier = grant.by_message and UNCONFIRMED or 0
    scores[2 * i - 1], scores[2 * i] = string.format('%.1f', now + grant.lease - earlier), grant.id
    texts[2 * i - 1] = grant.id
    texts[2 * i] = exact(grant.token) .. ':' .. exact(grant.permits) .. ':'
      .. (grant.slots or '') .. ':' .. (grant.key or '')
    longest, heavy = math.max(longest, grant.lease), heavy + grant.permits - 1
  end
  local save = rated and rated.save or save_counter
  save(longest)
  call('HSET', facts, unpack(texts))
  if heavy > 0 then
    state.heavy = state.heavy + heavy
    call('HSET', meta, 'heavy', state.heavy)
  end
  if keyed then keyed.write_uses(grants, longest) end
  state.holding = state.holding + call('ZADD', holders, unpack(scores))
  keep(facts, longest)
  keep(holders, longest)
end

-- What *id* holds, if it is a live holder whose facts are known; otherwise nil.
local function grant_of(id)
  local expiry = tonumber(call('ZSCORE', holders, id))
  local token, permits, slots, key =
    string.match(call('HGET', facts, id) or '', '^(%d+):(%d+):([^:]*):(.*)$')
  if token and expiry and expiry > now then
    return {
      id = id, token = tonumber(token), permits = tonumber(permits), slots = slots, key = key,
      left = math.ceil(expiry - now),
      held = math.max(0, math.floor((now_us - token) / 1000)),  -- because tokens follow the clock
    }
  end
end
-- The same for a reply: {token, ms left} with the slots, if there are any; or nil.
local function holding_of(id)
  local grant = grant_of(id)
  return grant and { grant.token, grant.left, slotted and grant.slots }
end

-- In how many ms the earliest holder expires, or the pause of a back-off ends; -1 if there is no
-- holder.
local function next_expiry()
  if state.ramp == 0 then return state.ramp_changes - now end
  local first = call('ZRANGE', holders, 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, math.ceil(first[2] - now)) or -1
end

-- The lease and max_hold, if it is given, in 'lease_ms' or 'lease_ms:max_hold'.
local function parse_lease(text)
  local lease, max_hold = string.match(text, '^(%d+):?(%d*)$')
  return tonumber(lease), tonumber(max_hold)
end
-- The ids that ARGV names from position *first* on, as 'number' or 'number:...', with *owner* as
-- their hub; and their highest number.
local function parse_ids(owner, first)
  local ids, highest = {}, 0
  for i = first, #ARGV do
    local number = string.match(ARGV[i], '^%d+')
    ids[#ids + 1] = owner .. '.' .. number
    highest = math.max(highest, tonumber(number))
  end
  return ids, highest
end
