-- quick release: give permits of the caller's hub back, and hand them to the requests whose turn it
-- is, with the fewest commands.
--
-- The result is that of release. The quick path is taken when all of this is true:
--
--   1. the ids are of the caller's hub, and the call tells no hold
--   2. no holder is heavy
--   3. every number is higher than the one before it, so that none occurs twice, and has been used
--   4. every id holds a permit
--
-- and where requests wait:
--
--   5. no limit is set, and queue_is_settled()
--   6. no holder has expired
--   7. the next requests are for one permit each and fit, and those that are not of the caller's hub
--      are of one that receives push messages
--   8. the request behind them may be served one day, though not now. (Zset: none fits, because none
--      did before.)
--
-- RETURNS  {tag}: all were held, and no request of the caller's hub waits; or as release does
-- USES     now, mark, last, now_us, alive_until, liveness_timeout, keep, wall_us, SLACK,
--          YOUNG, PARKED, publish_to, queue_is_settled

local is_fair = string.find(mode, 'fair', 1, true)

-- The requests that get *count* permits: of the releasing hub first, where those may pass.
local function next_requests(count)
  if mode == 'zset server' and #ARGV[7] > 1 then
    local head = call('ZRANGEBYSCORE', queue, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    local age = head[2] and now_us - head[2]
    if age and age >= 0 and age <= YOUNG then
      local own = {}
      for name in string.gmatch(ARGV[7], '[^,]+') do own[#own + 1] = hub .. '.' .. name end
      if #own < count then return end
      for _, score in ipairs(call('ZMSCORE', queue, unpack(own))) do
        if not score or tonumber(score) < 0 then return end
      end
      return own
    end
  end
  return call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, count + 1)
end

-- Whom to grant what, in place of *count* holders: ids, tokens and expiries, and what the push
-- message says, if there is to be one; or nil.
local function hand_over(count)
  local used = call('ZCARD', holders)
  if not queue_is_settled(used) or call('ZCOUNT', holders, '-inf', now) > 0 then return end
  local requests = next_requests(count)
  if not requests then return end
  used = used - count
  local token = math.max(last + 1, now_us) - 1
  local plan = { requests = {}, names = {}, scores = {}, own = {}, grants = {}, longest = 0 }
  for i, request in ipairs(requests) do
    local owner, number, lease, declared, permits =
      string.match(request, '^(%x+)%.(%d+):(%d+):(%d+):(%d+)$')
    local fits = used + i - 1 + tonumber(permits) <= tonumber(declared)
    if i > count then
      if is_fair and (fits or tonumber(permits) > tonumber(declared)) then return end
      plan.behind = is_fair and owner
      break
    end
    if not fits or permits ~= '1' or owner ~= hub and owner ~= (plan.other or owner) then return end
    lease, token = tonumber(lease), token + 1
    if owner == hub then
      if alive_until < now + liveness_timeout(lease) then return end
      plan.own[#plan.own + 1] = tonumber(number)
      plan.own[#plan.own + 1] = token
    else
      plan.other = owner
      plan.grants[#plan.grants + 1] = string.format('%s:%.0f:%d', number, token, lease)
    end
    plan.requests[i] = request
    plan.names[2 * i - 1], plan.names[2 * i] = owner .. '.' .. number, token
    plan.scores[2 * i - 1], plan.scores[2 * i] = now + lease, owner .. '.' .. number
    plan.longest = math.max(plan.longest, lease)
  end
  plan.last = token
  if plan.other then
    local state = call('HMGET', meta, plan.other .. ':until', plan.other .. ':no_push',
      plan.other .. ':unreachable')
    if (tonumber(state[1]) or 0) <= now or state[2] ~= '0' or state[3] then return end
    call('HLEN', tokens)  -- an error of its type comes before the message
    if publish_to(plan.other, 'granted', table.concat(plan.grants, ',')) == 0 then return end
  end
  return plan
end

local function give_back_all()
  if ARGV[5] ~= hub or ARGV[6] ~= '' then return end
  local waiting, unusual = 0, call('EXISTS', extra, limit, queue)
  if unusual > 0 then
    waiting = call('ZCARD', queue)
    if waiting > 0 and unusual > 1 or waiting == 0 and call('EXISTS', extra) > 0 then return end
  end
  local ids, highest = {}, 0
  for i = 8, #ARGV do
    local number = tonumber(ARGV[i])
    if number <= highest or number > mark then return end
    highest = number
    ids[i - 7] = hub .. '.' .. ARGV[i]
  end
  for _, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
    if not expiry or tonumber(expiry) <= now then return end
  end
  local plan = waiting > 0 and hand_over(#ids)
  if waiting > 0 and not plan then return end
  -- The first write can fail, because the script has not read this key: nothing is written then.
  call('HDEL', tokens, unpack(ids))
  call('ZREM', holders, unpack(ids))
  if not plan then return { tag } end
  if #plan.requests > 0 then
    call('ZREM', queue, unpack(plan.requests))
    call('HSET', tokens, unpack(plan.names))
    call('ZADD', holders, unpack(plan.scores))
    keep(tokens, plan.longest)
    keep(holders, plan.longest)
    call('HSET', meta, 'counter', plan.last)
    if plan.last > wall_us or clock_us ~= '' then
      keep(meta, plan.longest + (plan.last - wall_us) / 1000 + SLACK)
    end
  end
  if ARGV[7] == '' and #plan.own == 0 then return { tag } end
  waiting = waiting - #plan.requests
  local next_ms = -1
  if waiting > 0 then
    local first = call('ZRANGE', holders, 0, 0, 'WITHSCORES')
    local head_dies = plan.behind and call('HGET', meta, plan.behind .. ':until')
    local moment = math.min(tonumber(first[2]) or math.huge, tonumber(head_dies) or math.huge)
    if moment < math.huge then next_ms = math.max(0, moment - now) end
    waiting = waiting - call('ZCOUNT', queue, '-inf', string.format('(%.0f', -PARKED))
  end
  local reply = { tag, next_ms, waiting, plan.own }
  for i = 1, #ids do reply[4 + i] = 1 end
  return reply
end

local reply = give_back_all()
if reply then return reply end
