-- head: the beginning of every script: its keys, the clock, and the state of the caller's hub.
--
-- A script as the server receives it is this file, the operation's quick path if it has one,
-- publish_to() from tell/, what it uses of the files that serve many operations, and its own file.
--
-- KEYS     holders   ZSET, permit id -> expiry in ms of the semaphore's clock
--          tokens    HASH, permit id -> fencing token, of every holder
--          meta      HASH, layout -> number of the layout of the keys: see LAYOUT;
--                    mode -> mode and clock; counter -> last token or ticket issued;
--                    ahead -> us by which the semaphore's clock leads the server's;
--                    returns -> that parked requests return to the queue, from which score on;
--                    looked -> when the queue was looked through for requests of dead hubs;
--                    passed -> which requests do not fit: see serve.lua;
--                    limit -> the set limit, so that the loss of its key is noticed;
--                    hold -> for how long requests hold their permits lately, in ms times permits;
--                    back_off -> see ramp_of(); back_offs -> that keys may have some.
--                    For each hub: hub -> highest number that it has used here; hub:until ->
--                    alive until, as in hubs; hub:calls, hub:changes -> highest numbers of its
--                    operations that run at most once; hub:client -> facts about it; hub:no_push -> '1'
--                    when no push message reaches it, '2' when its subscription is not counted;
--                    hub:unreachable -> '1' when a push message to it had no subscriber
--          hubs      ZSET, hub -> alive until, in ms of the semaphore's clock
--          extra     ZSET, permits beyond the first of a holder: see the prelude
--          limit     STRING, the set limit, if any, without an expiry; after a pause '0 n', if it
--                    found a set limit of n
--          queue     ZSET, requests that wait: see queue.lua
-- ARGV     tag       comes first in the reply, so that a reply is never matched to another call
--          clock_us  '' for the server's clock, otherwise the caller's, in microseconds
--          mode      'fair server', 'zset local', ...
--          hub       the caller's hub
-- RETURNS  {tag, ...}, or the error MODE when the name is in use in another mode or with another
--          clock; with that mode and clock, how many ids hold permits, how many hubs count as
--          alive, and in how many ms meta expires (-1 for never): until then the name is taken.
--          Or the error LAYOUT when the name is in use in another layout; with that layout (0 for
--          none), the caller's, the versions that hubs which count as alive say they have
--          ('-' for none), and in how many ms meta expires.
--          Or the error NOCLOCK when scripts cannot read the server's clock
-- USES     none: this file is the first. In an operation's file, USES lists what the body takes
--          from the files before it, and after 'sets' what it changes there. The KEYS and ARGV
--          above, and call(), are not repeated

local call = redis.call
local holders, tokens, meta, hubs, extra, limit, queue = unpack(KEYS)
local tag, clock_us, mode, hub = unpack(ARGV, 1, 4)

-- Number of this layout of the keys. A change that clients of the layout before could not follow
-- raises it. In every layout, `meta` is the key with the field `layout`.
local LAYOUT = '2'
local SLACK = 60000   -- ms by which meta outlives what it protects
local PARKED = 2 ^ 52    -- above any ticket; the sums are exact
local STEP = 1000000  -- us by which the clock has to differ to count as set back
local YOUNG = 50000   -- us for which the oldest request lets those of the releasing hub pass (zset)

local wall_us = tonumber(clock_us)
if not wall_us then
  local time = redis.pcall('TIME')
  if not time.err then
    wall_us = time[1] * 1000000 + time[2]
  else
    -- Some services refuse TIME in scripts. The server's clock is then when a key expires, less the
    -- time that is left until then. Where nothing is stored that expires, meta is, for a moment.
    local key, lent
    for _, stored in ipairs({ meta, unpack(KEYS) }) do
      if call('PTTL', stored) >= 0 then
        key = stored
        break
      end
    end
    if not key then
      key, lent = meta, redis.pcall('HSET', meta, '', '') == 1
      if lent then call('PEXPIRE', meta, 60000) end
    end
    -- Without an expiry both are equal, and the clock is 0: the write was refused, at maxmemory or
    -- by a replica, and nothing that is stored depends on the clock.
    local expires_at = redis.pcall('PEXPIRETIME', key)
    if type(expires_at) == 'number' then wall_us = 1000 * (expires_at - call('PTTL', key)) end
    if lent then call('HDEL', meta, '') end
    if not wall_us then
      return redis.error_reply('NOCLOCK scripts cannot read the clock of this server, use'
        .. ' clock="local": ' .. time.err .. '; ' .. expires_at.err)
    end
  end
end

local fields = call('HMGET', meta, 'mode', 'counter',
  hub, hub .. ':until', hub .. ':no_push', hub .. ':unreachable', 'back_off', 'ahead', 'back_offs',
  'returns', 'hold', 'layout', 'passed', 'looked', 'limit')
fields.layout = fields[12] or fields[1] and '0'  -- a name in use without a number
if fields[1] and fields[1] ~= mode or fields.layout and fields.layout ~= LAYOUT then
  -- Count by the clock in use: the server's, if this caller's is a local one.
  if clock_us ~= '' and string.find(fields[1] or '', 'server', 1, true) then
    local time = redis.pcall('TIME')
    local expires_at = time.err and redis.pcall('PEXPIRETIME', meta)
    if not expires_at then
      wall_us = time[1] * 1000000 + time[2]
    elseif type(expires_at) == 'number' then
      wall_us = 1000 * (expires_at - call('PTTL', meta))
    end
  end
  local after = string.format('(%.0f', math.floor((wall_us + (tonumber(fields[8]) or 0)) / 1000))
  if fields.layout ~= LAYOUT then
    local versions = {}
    pcall(function()  -- the keys of another layout may be anything
      local who = call('ZRANGEBYSCORE', hubs, after, '+inf', 'LIMIT', 0, 32)
      for i, owner in ipairs(who) do who[i] = owner .. ':client' end
      for _, facts in ipairs(who[1] and call('HMGET', meta, unpack(who)) or {}) do
        local version = string.match(facts or '', '"version":%s*"([%w.+!_-]+)"')
        if version and #version <= 40 and not versions[version] then
          versions[version], versions[#versions + 1] = true, version
        end
      end
    end)
    return redis.error_reply(string.format('LAYOUT %s %s %s %.0f',
      string.match(fields.layout, '^%d%d?%d?%d?$') or '0', LAYOUT,
      #versions > 0 and table.concat(versions, ',') or '-', call('PTTL', meta)))
  end
  return redis.error_reply(string.format('MODE %s %d %d %.0f', fields[1],
    call('ZCOUNT', holders, after, '+inf'), call('ZCOUNT', hubs, after, '+inf'),
    call('PTTL', meta)))
end
-- The counter of tokens and tickets follows the clock and never goes back, so tokens grow even
-- after the loss of meta. A caller whose clock is behind then follows the tickets that were passed
-- over, because what `passed` says of them would be untrue of a lower one.
local last = math.max(tonumber(fields[2]) or 0,
  tonumber(string.match(fields[13] or '', '(%d+):%d+$')) or 0)
local mark = tonumber(fields[3]) or 0         -- highest number that the caller's hub has used here
local alive_until = tonumber(fields[4]) or 0  -- until when it counts as alive
local unknown_hub = not fields[5]             -- meta has no facts about it
local unreachable = fields[6]                 -- a push message to it had no subscriber
local returns = fields[10]                    -- from which score on parked requests return
local usual_hold = tonumber(fields[11]) or -1

-- The semaphore's clock is the server's, but never goes back. When the server's clock was set back
-- by more than STEP, the counter shows it, and the semaphore's clock leads by the difference from
-- then on. (Less than STEP may be a burst of tokens.) Callers' clocks differ, so with a local clock
-- each caller would put the semaphore's clock further ahead; it does not follow them.
local ahead = tonumber(fields[8]) or 0
if wall_us + ahead < last - STEP and string.find(mode, 'server', 1, true) then
  ahead = last - wall_us
  -- If Redis refuses this write at maxmemory, a later call does it.
  redis.pcall('HSET', meta, 'ahead', ahead)
end
local now_us = wall_us + ahead  -- and the next token, unless the last one is as high
local now = math.floor(now_us / 1000)

-- The interval of heartbeats of a hub with this lease, and how long it counts as alive, in ms.
local function heartbeat_interval(lease)
  return math.min(math.max(math.floor(lease / 3), 1000), 10000)
end
local function liveness_timeout(lease)
  local beat = heartbeat_interval(lease)
  return math.max(3 * beat, lease + beat)
end

-- Keeps *key* for at least *need* ms. The expiry is set further ahead than that, so that this
-- seldom writes; it is never set nearer.
local function keep(key, need)
  local left = call('PTTL', key)
  if left ~= -2 and left < 2 * need then
    call('PEXPIRE', key, math.ceil(3 * need))
  end
end
