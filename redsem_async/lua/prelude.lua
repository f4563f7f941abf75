-- What every script begins with: the keys, the clock, the counter and the holders.
--
-- A script as the server receives it is this file, the prelude of its mode, and its own file.
--
-- KEYS     holders   ZSET, permit id -> expiry in ms of the semaphore's clock
--          tokens    HASH, permit id -> fencing token, of every holder
--          meta      HASH, mode -> which mode and clock, counter -> last token or ticket drawn
--          hubs      ZSET, hub -> alive until, in ms of the semaphore's clock
--          marks     HASH, hub -> its highest number here; hub:who, hub:deaf, hub:gone
--          weights   HASH, permit id -> permits, of holders of more than one
--          limit     STRING, the set limit, if any; the only key without an expiry
--          line      ZSET, who waits: see the prelude of the mode
-- ARGV     tag       comes first in the reply, so that no reply is taken for another's
--          clock_us  '' for the server's clock, otherwise the caller's, in microseconds
--          mode      'fair server', 'zset local', ...
--          hub       the caller's hub
-- RETURNS  {tag, ...}, or the error MODE when the name is in use otherwise

local holders, tokens, meta, hubs, marks = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local weights, limit, line = KEYS[6], KEYS[7], KEYS[8]
local tag, clock_us, mode, hub = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local CHUNK = 500       -- most ids that one call purges
local SLACK = 60000     -- ms by which marks and the counter outlive what they protect

local now_us
if clock_us == '' then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
else
  now_us = tonumber(clock_us)
end
local now = math.floor(now_us / 1000)

local facts = redis.call('HMGET', meta, 'mode', 'counter')
if facts[1] and facts[1] ~= mode then
  return redis.error_reply('MODE ' .. facts[1])
end

-- tostring() keeps 14 digits, and a token has 16.
local function exact(number)
  return string.format('%.0f', number)
end

-- Tells the hub *owner* something. Returns how many heard it; nil where that cannot be known.
local function tell(owner, kind, what)
  local prefix, name = string.match(holders, '^(.-){(.*)}')
  local heard = redis.pcall('PUBLISH', prefix .. '@' .. owner, kind .. ' ' .. what .. ' ' .. name)
  return type(heard) == 'number' and heard or nil
end

-- Gives *key* an expiry at least *need* ms away: seldom, and never a nearer one.
local function keep(key, need)
  local left = redis.call('PTTL', key)
  if left ~= -2 and left < 2 * need then
    redis.call('PEXPIRE', key, math.ceil(3 * need))
  end
end

-- Tokens and tickets come from one counter that follows the clock and never goes back, so it
-- need not survive the loss of its key.
local last = tonumber(facts[2]) or 0
local function draw()
  last = math.max(last + 1, now_us)
  return last
end
local function save_counter(need)
  redis.call('HSET', meta, 'mode', mode, 'counter', exact(last))
  keep(meta, need + math.max(0, last / 1000 - now) + SLACK)
end

-- How often a hub with this lease is heard from, and for how long it counts as alive.
local function heartbeat_of(lease)
  return math.min(math.max(math.floor(lease / 3), 1000), 10000)
end
local function alive_for(lease)
  local beat = heartbeat_of(lease)
  return math.max(3 * beat, lease + beat)
end
local function note(...)
  redis.call('HSET', marks, ...)
  keep(marks, SLACK)
end

-- Forgets hubs that have been silent for long, a few at a time.
local function bury()
  for _, dead in ipairs(redis.call('ZRANGEBYSCORE', hubs, '-inf', now - SLACK, 'LIMIT', 0, 10)) do
    redis.call('ZREM', hubs, dead)
    redis.call('HDEL', marks, dead, dead .. ':who', dead .. ':deaf', dead .. ':gone', dead .. ':waits')
  end
end

-- Keeps the caller's hub alive: seldom, and then for longer than it has to be.
local function touch(lease)
  local need = alive_for(lease)
  if (tonumber(redis.call('ZSCORE', hubs, hub)) or 0) < now + need then
    redis.call('ZADD', hubs, now + math.floor(1.25 * need), hub)
    keep(hubs, need + SLACK)
    keep(marks, need + SLACK)
    bury()
  end
end

-- Reads what serving needs. Every key is read before the first write, since a script that
-- fails half-way (WRONGTYPE) is not rolled back.
local cap          -- the set limit, if any
local mark         -- the highest number that the caller's hub has used here
local gone         -- whether a message for the caller's hub was heard by nobody
local stranger     -- whether it is not known who the caller's hub is
local waiting      -- entries in line
local heavy = 0    -- permits that holders of several have beyond one each
local function survey()
  local own = redis.call('HMGET', marks, hub, hub .. ':gone', hub .. ':deaf')
  mark, gone, stranger = tonumber(own[1]) or 0, own[2], not own[3]
  cap = tonumber(redis.call('GET', limit))
  waiting = redis.call('ZCARD', line)
  for _, permits in ipairs(redis.call('HVALS', weights)) do heavy = heavy + permits - 1 end
  redis.call('ZCARD', hubs)
  redis.call('ZCARD', holders)
  redis.call('HLEN', tokens)
end

-- Takes *ids* out of the holders; nothing beside them leaks. Returns the permits they held.
local function drop(ids)
  local freed = redis.call('ZREM', holders, unpack(ids))
  redis.call('HDEL', tokens, unpack(ids))
  if heavy > 0 then
    for _, permits in ipairs(redis.call('HMGET', weights, unpack(ids))) do
      local beyond = (tonumber(permits) or 1) - 1
      freed = freed + beyond
      heavy = heavy - beyond
    end
    redis.call('HDEL', weights, unpack(ids))
  end
  return freed
end

local used          -- permits in use
local freed = 0     -- permits that this call took from holders
local more = false  -- the call stopped early: its caller goes on
local function purge()
  local expired = redis.call('ZRANGEBYSCORE', holders, '-inf', now, 'LIMIT', 0, CHUNK)
  if #expired > 0 then
    freed = freed + drop(expired)
  end
  more = more or #expired == CHUNK
  used = redis.call('ZCOUNT', holders, '(' .. exact(now), '+inf') + heavy
end

-- Writes grants, each {id, token, lease, permits}, with as few commands as there are keys.
local function hold(grants)
  if #grants == 0 then return end
  local scores, names, several, longest = {}, {}, {}, 0
  for _, grant in ipairs(grants) do
    local id, token, lease, permits = unpack(grant)
    names[#names + 1] = id
    names[#names + 1] = exact(token)
    scores[#scores + 1] = now + lease
    scores[#scores + 1] = id
    if permits > 1 then
      several[#several + 1] = id
      several[#several + 1] = permits
      heavy = heavy + permits - 1
    end
    longest = math.max(longest, lease)
  end
  redis.call('HSET', tokens, unpack(names))
  redis.call('ZADD', holders, unpack(scores))
  keep(tokens, longest)
  keep(holders, longest)
  if #several > 0 then
    redis.call('HSET', weights, unpack(several))
  end
  if heavy > 0 then keep(weights, longest) end
  save_counter(longest)
end

-- What an id that was used before stands for now: {token, ms left} of a holder, or nil.
local function found(id)
  local expiry = tonumber(redis.call('ZSCORE', holders, id))
  if expiry and expiry > now then
    return { redis.call('HGET', tokens, id), expiry - now }
  end
end

-- The high-water mark of the caller's hub: a number at or below it is never granted anew, so
-- a delayed duplicate of an acquire cannot bring a released permit back.
local function raise_mark(number)
  if number > mark then
    note(hub, exact(number))
    touch(0)
  end
end

-- What a hub is answered that was forgotten, or never known, and does not say who it is.
local function who_are_you()
  return redis.error_reply('STRANGER this hub is not known here')
end

-- Notes who the caller's hub is and whether it can be told anything; '' says nothing new.
local function introduce(who, deaf)
  if who ~= '' then note(hub .. ':who', who, hub .. ':deaf', deaf) end
  if gone then redis.call('HDEL', marks, hub .. ':gone') end
end

-- In how many ms the earliest holder expires; -1 for never.
local function next_expiry()
  local first = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, first[2] - now) or -1
end
