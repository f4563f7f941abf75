-- head: the beginning of every script: its keys, the clock, and what meta says.
--
-- KEYS     holders   ZSET, permit id -> expiry, in ms of the semaphore's clock
--          facts     HASH, permit id -> '<token>:<permits>:<slots>:<key>', of every holder
--          meta      HASH, the state of the semaphore and of its hubs: see below
--          hubs      ZSET, hub -> alive until, in ms of the semaphore's clock
--          limit     STRING, the set limit, if any: see set_limit.lua. It has no expiry
--          queue     ZSET, waiting request -> ticket: see queue.lua
--          With keys, those of keyed.lua follow
-- ARGV     tag       comes first in the reply, so that a reply is never matched to another call
--          clock_us  '' for the server's clock, otherwise the caller's, in us
--          mode      'fair server', 'zset local', ...
--          hub       the caller's hub
-- RETURNS  {tag, ...}, or an error of refusal.lua, or the error NOCLOCK when scripts cannot read the
--          server's clock
--
-- meta     layout    number of the layout of the keys: see LAYOUT
--          mode      mode and clock
--          counter   the last token or ticket, in us
--          lead      us by which the semaphore's clock leads the server's
--          heavy     permits beyond the first of each holder, in all
--          hold      for how long permits are held lately, in ms times permits
--          back_off  see ramp.lua
--          passed    which requests do not fit: see order.lua; with keys, '1' if there is passed:<key>
--          key_back_offs, ready_for, ...   with keys: see keyed.lua
--          looked    when the requests of dead hubs were dropped: see serve.lua
--          slots     the longest list of slots that a client declares
--          <hub>     the highest number that this hub has used
--          <hub>:calls, <hub>:changes   highest numbers of its operations that run at most once
--          <hub>:client                 facts about it, as JSON
--          <hub>:offset                 us by which the semaphore's clock is ahead of the hub's: see
--                                       acquire.lua
--          <hub>:no_push                '1' when no push message reaches it, '2' when the server does
--                                       not count it as a receiver, otherwise '0'

local call = redis.call
local holders, facts, meta, hubs, limit, queue = unpack(KEYS)
local uses, lines, ready, key_limits, ramps, turns = unpack(KEYS, 7)
local tag, clock_us, mode, hub = unpack(ARGV, 1, 4)

-- Number of this layout of the keys. A change that clients of the layout before could not follow
-- raises it. In every layout, `meta` is the key with the field `layout`.
local LAYOUT = '3'
local SLACK = 60000   -- ms by which meta outlives what it protects
local STEP = 1000000  -- us by which the clock has to differ to count as set back
local UNCONFIRMED = 0.5  -- ms by which a grant by message expires earlier, until it is refreshed
local YOUNG = 50000   -- us for which the oldest request lets those of the releasing hub pass (zset)

-- Returns the server's clock in us, or nil and an error text if scripts cannot read it. Some services
-- refuse TIME in scripts. The clock is then the time when meta expires, less the time that is left
-- until then; without meta, it is created for a moment. If that write is refused (at maxmemory, or by a
-- replica), the clock is 0, because nothing that is stored depends on it.
local function read_clock()
  local time = redis.pcall('TIME')
  if not time.err then return time[1] * 1000000 + time[2] end
  local lent = call('PTTL', meta) < 0 and redis.pcall('HSET', meta, '', '') == 1
  if lent then call('PEXPIRE', meta, SLACK) end
  local expires_at = redis.pcall('PEXPIRETIME', meta)
  local left = call('PTTL', meta)
  if lent then call('HDEL', meta, '') end
  if type(expires_at) == 'number' then return 1000 * (expires_at - left) end
  return nil, 'NOCLOCK scripts cannot read the clock of this server, use clock="local": ' .. time.err
    .. '; ' .. expires_at.err
end
local wall_us, refused = tonumber(clock_us), nil
if not wall_us then wall_us, refused = read_clock() end
if refused then return redis.error_reply(refused) end

-- What meta says; `known` is whether it has facts about the caller's hub, and `highest` that hub's mark.
local fields = call('HMGET', meta, 'layout', 'mode', 'counter', 'lead', 'heavy', 'hold',
  'back_off', 'passed', 'looked', 'key_back_offs', hub, hub .. ':no_push')
local layout, stored_mode, counter, lead, heavy, usual_hold = unpack(fields)
local back_off, passed, looked, key_back_offs, highest, known = unpack(fields, 7)
layout = layout or stored_mode and '0'  -- a name in use without a number
counter, lead, heavy = tonumber(counter) or 0, tonumber(lead) or 0, tonumber(heavy) or 0
usual_hold, highest = tonumber(usual_hold) or -1, tonumber(highest) or 0
-- Where meta was lost, the newest token or ticket that is left stands for the counter.
if not layout then
  for _, text in ipairs(call('HGETALL', facts)) do
    counter = math.max(counter, tonumber(string.match(text, '^(%d+):')) or 0)
  end
  local last = queue and call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
  counter = math.max(counter, tonumber(last) or 0)
end

-- The semaphore's clock is the server's, but never goes back. When the server's clock was set back
-- by more than STEP, the counter shows it, and the semaphore's clock leads by the difference from
-- then on. (Less than STEP may be a burst of tokens.) Callers' clocks differ, so with a local clock
-- each caller would put the semaphore's clock further ahead; it does not follow them.
local is_set_back = wall_us + lead < counter - STEP and string.find(mode, 'server', 1, true)
  and (stored_mode or mode) == mode and (layout or LAYOUT) == LAYOUT
if is_set_back then lead = counter - wall_us end
local now_us = wall_us + lead
local now = math.floor(now_us / 1000)
-- The token or ticket that follows *last*.
local function token_after(last)
  return math.max(last + 1, now_us)
end

-- For how many ms a hub with this lease counts as alive, by the interval of its heartbeats.
local function liveness_timeout(lease)
  local interval = math.min(math.max(math.floor(lease / 3), 1000), 10000)
  return math.max(3 * interval, lease + interval)
end
local function alive_until(owner)
  return tonumber(call('ZSCORE', hubs, owner)) or 0
end

-- Keeps *key* for at least *need* ms. The expiry is set further ahead than that, so that this
-- seldom writes; it is never set nearer. Returns whether there is such a key.
local function keep(key, need)
  local left = call('PTTL', key)
  if left ~= -2 and left < 2 * need then
    call('PEXPIRE', key, math.ceil(3 * need))
  end
  return left ~= -2
end
-- If Redis refuses this write at maxmemory, a later call does it.
if is_set_back and type(redis.pcall('HSET', meta, 'lead', lead)) == 'number' then keep(meta, SLACK) end
