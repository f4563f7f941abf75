-- What scripts do with holders, hubs and the counter, in both modes.

local MAX_PURGED = 500  -- most ids that one call purges
local BAND = 2 ^ 42     -- above any expiry in ms: scores of `extra` are in bands of this width

-- For a number within a text: tostring() keeps 14 digits, and a token has 16.
local function exact(number)
  return string.format('%.0f', number)
end

local function next_token()
  last = math.max(last + 1, stamp_us)
  return last
end
-- By how many ms the counter leads the server's clock: meta must not be forgotten before.
local function counter_lead()
  return math.max(0, (last - wall_us) / 1000)
end
local function save_counter(need)
  last = math.max(last, stamp_us - 1)
  call('HSET', meta, 'mode', mode, 'counter', last)
  keep(meta, need + counter_lead() + SLACK)
end

-- Forgets hubs that have been silent for long, a few at a time.
local function forget_dead_hubs()
  for _, dead in ipairs(call('ZRANGEBYSCORE', hubs, '-inf', now - SLACK, 'LIMIT', 0, 10)) do
    call('ZREM', hubs, dead)
    call('HDEL', meta, dead, dead .. ':until', dead .. ':calls', dead .. ':who', dead .. ':deaf',
      dead .. ':gone', dead .. ':waits')
  end
end

-- Keeps the caller's hub alive: seldom, and then for longer than it has to be. Notes what time
-- it is, too, so that the counter is never far behind the clock.
local function keep_hub_alive(lease)
  if last < stamp_us - STEP then
    last = stamp_us - 1
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

-- Reads what serving needs. Every key is read before the first write, since a script that
-- fails half-way (WRONGTYPE) is not rolled back.
local set_limit      -- the set limit, if any
local waiting        -- entries in line
local holder_count   -- ids of holders, the expired among them
local top_power      -- the highest power in `extra`; -1 when no holder has more than one permit
local marker_server  -- the server that the marker names
local token_count    -- entries in `tokens`
local function load_state()
  set_limit = tonumber(call('GET', limit))
  waiting = call('ZCARD', line)
  local last_entry = call('ZRANGE', extra, -1, -1, 'WITHSCORES')
  top_power = last_entry[2] and math.floor(last_entry[2] / BAND) or -1
  holder_count = call('ZCARD', holders)
  token_count = call('HLEN', tokens)
  call('ZCARD', hubs)
  if marker then
    marker_server = call('GET', marker)
    call('ZCARD', released)
  end
end

-- A holder of w permits has an entry '<id>:<power>' in `extra` for each power of two that w - 1
-- is the sum of, with the score expiry + power * BAND. So permits in use are counted, power by
-- power, and an entry ends at its own expiry, whatever becomes of the other keys.
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
-- Live permits beyond the first of each holder.
local function extra_permits()
  local count = 0
  for power = 0, top_power do
    local from = power * BAND
    local live = call('ZCOUNT', extra, '(' .. exact(from + now), '(' .. exact(from + BAND))
    count = count + 2 ^ power * live
  end
  return count
end
-- How many permits *id*, a live holder, has.
local function permits_of(id)
  local permits, entries = 1, {}
  for power = 0, top_power do entries[power + 1] = id .. ':' .. power end
  if top_power < 0 then return permits end
  for i, score in ipairs(call('ZMSCORE', extra, unpack(entries))) do
    if score then permits = permits + 2 ^ (i - 1) end
  end
  return permits
end

-- Takes *ids* out of the holders; nothing beside them leaks. Returns the permits they held.
local function remove_holders(ids)
  local freed = call('ZREM', holders, unpack(ids))
  holder_count = holder_count - freed
  call('HDEL', tokens, unpack(ids))
  for power = 0, top_power do
    local entries = {}
    for i, id in ipairs(ids) do entries[i] = id .. ':' .. power end
    freed = freed + 2 ^ power * call('ZREM', extra, unpack(entries))
  end
  return freed
end

local used          -- permits in use
local freed = 0     -- permits that this call took from holders
local more = false  -- the call stopped early: its caller goes on
local function purge()
  local expired = call('ZRANGEBYSCORE', holders, '-inf', now, 'LIMIT', 0, MAX_PURGED)
  if #expired > 0 then
    freed = freed + remove_holders(expired)
  end
  if #expired < MAX_PURGED then
    -- What is left of `extra` lost its holder, by eviction say: it ends when that would have.
    for power = 0, top_power do
      local from = power * BAND
      local ended = call('ZRANGEBYSCORE', extra, exact(from), exact(from + now),
        'LIMIT', 0, MAX_PURGED)
      if #ended > 0 then freed = freed + 2 ^ power * call('ZREM', extra, unpack(ended)) end
    end
    used = holder_count + extra_permits()
  else
    more = true
    used = call('ZCOUNT', holders, '(' .. exact(now), '+inf') + extra_permits()
  end
end

-- Writes grants, each {id, token, lease, permits}, with as few commands as there are keys.
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
  save_counter(longest)
end

-- What an id that was used before stands for now: {token, ms left} of a holder, or nil.
local function current_grant(id)
  local expiry = tonumber(call('ZSCORE', holders, id))
  if expiry and expiry > now then
    local token = call('HGET', tokens, id)
    if not token then
      -- Evicted, or flushed away: a later one still orders it.
      token = next_token()
      call('HSET', tokens, id, token)
      keep(tokens, expiry - now)
      save_counter(expiry - now)
    end
    return { token, expiry - now }
  end
end

-- The high-water mark of the caller's hub: a number at or below it is never granted anew, so
-- a delayed duplicate of an acquire cannot bring a released permit back.
local function raise_mark(number)
  if number > mark then
    mark = number
    call('HSET', meta, hub, number)
    keep_hub_alive(0)
  end
end

-- Calls that act once at most are numbered by their hub, in their own order: a delayed duplicate,
-- or one that was made void, has a number that is not above the highest noted here.
local function already_ran(number)
  return number <= (tonumber(call('HGET', meta, hub .. ':calls')) or 0)
end
local function note_call(number)
  call('HSET', meta, hub .. ':calls', number)
  keep_hub_alive(0)
end

-- The caller's hub is heard from after nobody heard a message for it: its requests come back.
local function clear_unreachable()
  if unreachable then
    call('HDEL', meta, hub .. ':gone')
    call('HSET', meta, 'aside', 0)
    unreachable, aside_due = nil, 0
  end
end

-- What a hub is answered that was forgotten, or never known, and does not say who it is.
local function unknown_hub_error()
  return redis.error_reply('STRANGER this hub is not known here')
end

-- After a loss of state nobody new is admitted for one lease, in which those who hold permits put
-- them back.
local function begin_grace(lease)
  grace = now + lease
  call('HSET', meta, 'lost', now, 'grace', grace)
  keep(meta, lease + SLACK)
end

-- Keeps *ids* from being put back in a grace period, by a command that comes late.
local function forbid_restore(ids)
  if not released or grace <= now then return end
  for _, id in ipairs(ids) do call('ZADD', released, now, id) end
  keep(released, grace - now)
end

-- The marker outlives keys that expire in idleness, and every start of a server draws a new
-- run_id: where the marker is missing, or another server's, writes may have been lost.
local function detect_restart(lease)
  local server = string.match(call('INFO', 'server'), 'run_id:(%x+)')
  if marker_server ~= server then
    call('SET', marker, server)
    begin_grace(lease)
  end
end

-- Tokens are kept for holders alone: where there are some and no holder, those were lost.
local function detect_lost_holders(lease)
  if marker and holder_count == 0 and token_count > 0 and grace <= now then
    call('DEL', tokens)
    begin_grace(lease)
  end
end

-- Notes who the caller's hub is and whether it can be told anything; '' says nothing new. A hub
-- introduces itself on every new connection, and when it is not known any more.
local function record_hub(hub_info, no_push, lease)
  if hub_info ~= '' then
    -- Where the server does not say who it is (INFO may be denied), the hub stays a stranger.
    if marker then detect_restart(lease) end
    call('HSET', meta, hub .. ':who', hub_info, hub .. ':deaf', no_push)
  end
  clear_unreachable()
end

-- In how many ms the earliest holder expires, or the grace period ends; -1 for never.
local function next_expiry()
  if grace > now then return grace - now end
  local first = call('ZRANGE', holders, 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, first[2] - now) or -1
end
