-- hubs: which numbers they have used, and until when they count as alive.

-- Deletes the state of hubs that are dead for longer than SLACK, ten at a time.
local function forget_dead_hubs()
  for _, dead in ipairs(call('ZRANGEBYSCORE', hubs, '-inf', now - SLACK, 'LIMIT', 0, 10)) do
    call('ZREM', hubs, dead)
    -- The queue is looked through again, because it may have requests of this hub.
    call('HDEL', meta, dead, dead .. ':calls', dead .. ':changes', dead .. ':client',
      dead .. ':no_push', dead .. ':offset', 'looked')
    state.looked = nil
  end
end

-- Keeps the caller's hub alive. It is kept alive for longer than it has to be, so that this seldom
-- writes. It also saves the counter, so that the counter never lags far behind the clock.
local function keep_hub_alive(lease)
  if state.counter < now_us - STEP then
    state.counter = now_us - 1
    note('counter', state.counter)
  end
  local need = liveness_timeout(lease)
  if not known or alive_until(hub) < now + need then
    local is_new = call('ZADD', hubs, now + math.floor(1.25 * need), hub) == 1
    if is_new and call('ZCARD', hubs) == 1 then  -- the others may have been lost, or be dead
      call('HDEL', meta, 'looked')
      state.looked = nil
    end
    keep(hubs, need + SLACK)
    keep(meta, need + SLACK)
    forget_dead_hubs()
  end
end

-- The high-water mark of the caller's hub: a number at or below it is never granted again, so
-- a delayed duplicate of an acquire cannot bring a released permit back.
local function raise_mark(number)
  if number > state.mark then
    state.mark = number
    note(hub, number)
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
  note(hub .. ':' .. kind, number)
  keep_hub_alive(0)
end

-- The reply to a hub that is not in meta and sent no facts about itself: it sends them and retries.
local function unknown_hub_error()
  return redis.error_reply('UNKNOWNHUB the hub has to send its facts')
end
-- Records facts about the caller's hub, and keeps it alive. A hub sends its facts on every new
-- connection and after UNKNOWNHUB; '' means that they have not changed. With them may come ':' and the
-- highest number that it has used, because the mark may have been lost.
local function record_hub(hub_info, no_push, lease)
  if hub_info ~= '' then
    local messages, used = string.match(no_push, '^(%d):?(%d*)$')
    note(hub .. ':client', hub_info, hub .. ':no_push', messages)
    raise_mark(tonumber(used) or 0)
  end
  keep_hub_alive(lease)
end
