-- What every script begins with: its keys, the clock, and what is known of its caller.
--
-- A script as the server receives it is this file, its quick path if it has one, how messages
-- are told, the prelude, the prelude of its mode, and its own file.
--
-- KEYS     holders   ZSET, permit id -> expiry in ms of the semaphore's clock
--          tokens    HASH, permit id -> fencing token, of every holder
--          meta      HASH, mode -> which mode and clock, counter -> last token or ticket drawn,
--                    ahead -> us by which the semaphore's clock leads the server's;
--                    offset -> us by which tokens lead the semaphore's clock; of every
--                    hub: hub -> its highest number here; hub:until -> alive until, as in hubs;
--                    hub:calls, the highest number of its calls that act once; hub:who and
--                    hub:deaf, once it has introduced itself; hub:gone; hub:waits;
--                    aside -> when requests that were set aside are looked at again;
--                    after a loss of state, lost -> since when, and grace -> until when nobody
--                    new is admitted
--          hubs      ZSET, hub -> alive until, in ms of the semaphore's clock
--          extra     ZSET, permits beyond the first of a holder: see the prelude
--          limit     STRING, the set limit, if any; the only key without an expiry
--          line      ZSET, who waits: see the prelude of the mode
--          marker    STRING, the server that keeps the semaphore, without an expiry; given, like
--                    the next, by clients that want a grace period after a loss of state
--          released  ZSET, ids that were released in a grace period -> when
-- ARGV     tag       comes first in the reply, so that no reply is taken for another's
--          clock_us  '' for the server's clock, otherwise the caller's, in microseconds
--          mode      'fair server', 'zset local', ...
--          hub       the caller's hub
-- RETURNS  {tag, ...}, or the error MODE when the name is in use otherwise, with the mode and clock
--          in use, how many ids hold permits, how many hubs count as alive, and in how many ms
--          meta expires (-1 for never): until then the name stays taken

local call = redis.call
local holders, tokens, meta, hubs, extra, limit, line, marker, released = unpack(KEYS)
local tag, clock_us, mode, hub = unpack(ARGV, 1, 4)

local SLACK = 60000     -- ms by which meta outlives what it protects

local wall_us
if clock_us == '' then
  local time = call('TIME')
  wall_us = time[1] * 1000000 + time[2]
else
  wall_us = tonumber(clock_us)
end

local fields = call('HMGET', meta, 'mode', 'counter',
  hub, hub .. ':until', hub .. ':deaf', hub .. ':gone', 'grace', 'ahead', 'offset',
  'aside')
if fields[1] and fields[1] ~= mode then
  -- By the clock of those who use the name, or the server's where that is another client's.
  if clock_us ~= '' and string.find(fields[1], 'server', 1, true) then
    local time = call('TIME')
    wall_us = time[1] * 1000000 + time[2]
  end
  local after = string.format('(%.0f', math.floor((wall_us + (tonumber(fields[8]) or 0)) / 1000))
  return redis.error_reply(string.format('MODE %s %d %d %.0f', fields[1],
    call('ZCOUNT', holders, after, '+inf'), call('ZCOUNT', hubs, after, '+inf'),
    call('PTTL', meta)))
end
-- Tokens and tickets come from one counter that follows the clock and never goes back, so it
-- need not survive the loss of its key.
local last = tonumber(fields[2]) or 0
local mark = tonumber(fields[3]) or 0  -- the highest number that the caller's hub has used here
local alive_until = tonumber(fields[4]) or 0
local unknown_hub = not fields[5]     -- whether it is not known who the caller's hub is
local unreachable = fields[6]         -- whether a message for it was heard by nobody
local grace = tonumber(fields[7]) or 0
local aside_due = tonumber(fields[10])

-- The semaphore's clock is the server's, but does not go back: the counter follows it, and so
-- shows when the server's was set back. From then on the semaphore's is ahead by as much.
-- (Callers' clocks differ, and each would put it further ahead of the others.)
local STEP = 1000000    -- us; less is a burst of tokens, or not worth it
-- Where tokens were put back after a loss that were drawn by a clock further on, the counter leads
-- the clock by an offset: a clock that leapt would end what was put back.
local ahead, offset = tonumber(fields[8]) or 0, tonumber(fields[9]) or 0
if wall_us + ahead + offset < last - STEP and string.find(mode, 'server', 1, true) then
  ahead = last - offset - wall_us
  redis.pcall('HSET', meta, 'ahead', ahead)  -- at maxmemory, by a later call
end
local now_us = wall_us + ahead
local now = math.floor(now_us / 1000)
local stamp_us = now_us + offset  -- the next token, unless the last was as high

-- How often a hub with this lease is heard from, and for how long it counts as alive.
local function heartbeat_interval(lease)
  return math.min(math.max(math.floor(lease / 3), 1000), 10000)
end
local function liveness_timeout(lease)
  local beat = heartbeat_interval(lease)
  return math.max(3 * beat, lease + beat)
end

-- Gives *key* an expiry at least *need* ms away: seldom, and never a nearer one.
local function keep(key, need)
  local left = call('PTTL', key)
  if left ~= -2 and left < 2 * need then
    call('PEXPIRE', key, math.ceil(3 * need))
  end
end
