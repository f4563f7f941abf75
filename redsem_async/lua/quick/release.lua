-- quick release: give permits of the caller's hub back, and hand them to the requests whose turn it
-- is, with the fewest commands.
--
-- The result is that of release. The quick path is taken when all of this is true:
--
--   1. usual_ids() finds nothing unusual
--
-- and where requests wait:
--
--   2. usual_state() finds nothing unusual
--   3. with keys, no request waits for one of these keys; without, the next requests are for one
--      permit each and fit, and those of other hubs are all of one that receives push messages
--   4. without keys, the request behind them may be served one day, though not now. (Zset: none
--      fits, because none did before.)
--
-- RETURNS  {tag}: all were held, and no request of the caller's hub waits; or as release does

-- Whom to grant what, in place of *count* holders of *used* permits: ids, facts and expiries, and what
-- the push message will say, if one is sent; or nil.
local function hand_over(count, used)
  local is_fair, requests = string.find(mode, 'fair', 1, true), call('ZRANGE', queue, 0, count)
  local age = mode == 'zset server' and #ARGV[7] > 1 and now_us - call('ZSCORE', queue, requests[1])
  if age and age >= 0 and age <= YOUNG then
    requests = {}  -- of the releasing hub, which may pass those of others
    for name in string.gmatch(ARGV[7], '[^,]+') do requests[#requests + 1] = hub .. '.' .. name end
    if #requests < count then return end
    for _, ticket in ipairs(call('ZMSCORE', queue, unpack(requests))) do
      if not ticket then return end
    end
  end
  used = used - count
  local token = token_after(counter) - 1
  local plan = { requests = {}, facts = {}, scores = {}, own = {}, told = {}, grants = {}, longest = 0 }
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
      plan.own[#plan.own + 1] = tonumber(number)
      plan.own[#plan.own + 1] = token
    else
      plan.other = owner
      plan.told[#plan.told + 1] = owner .. '.' .. number
      plan.grants[#plan.grants + 1] = string.format('%s:%.0f:%d', number, token, lease)
    end
    plan.requests[i] = request
    plan.facts[2 * i - 1] = owner .. '.' .. number
    plan.facts[2 * i] = string.format('%.0f:1::', token)
    local earlier = owner == hub and 0 or UNCONFIRMED
    plan.scores[2 * i - 1] = string.format('%.1f', now + lease - earlier)
    plan.scores[2 * i] = owner .. '.' .. number
    plan.longest = math.max(plan.longest, lease)
  end
  plan.last = token
  if plan.own[1] and alive_until(hub) < now + liveness_timeout(plan.longest) then return end
  if plan.other and (alive_until(plan.other) <= now
      or call('HGET', meta, plan.other .. ':no_push') ~= '0') then
    return
  end
  return plan
end

-- What the keys of *ids* have in use without them. nil where a request waits for one of the keys.
local function uses_without(ids, waiting)
  local in_use = {}
  for _, text in ipairs(call('HMGET', facts, unpack(ids))) do
    local key = text and string.match(text, '^%d+:1::([^:]*)$')
    local use = key and (in_use[key] or tonumber(call('ZSCORE', uses, key)))
    if not use or waiting > 0
        and call('ZLEXCOUNT', lines, '[' .. key .. '!', '(' .. key .. '"') > 0 then
      return
    end
    in_use[key] = use - 1
  end
  return in_use
end

local function give_back_all()
  local ids, used, waiting, plan, in_use = usual_ids(), nil, 0, nil, nil
  if not ids then return end
  if call('EXISTS', unpack({ queue, ramps })) > 0 then
    used, waiting = usual_state()
    plan = used and not uses and not rated and hand_over(#ids, used)
    if not used or not uses and not plan then return end
  end
  if uses then in_use = uses_without(ids, waiting) end
  if uses and not in_use then return end
  call('ZREM', holders, unpack(ids))
  for key, permits in pairs(in_use or {}) do
    if permits > 0 then
      call('ZADD', uses, permits, key)
    else  -- a key that neither holds nor waits has no virtual time
      call('ZREM', uses, key)
      if turns or passed then call('HDEL', meta, 'virtual:' .. key, 'passed:' .. key) end
    end
  end
  call('HDEL', facts, unpack(ids))
  if waiting == 0 then return { tag } end
  plan = plan or { requests = {}, own = {} }
  if #plan.requests > 0 then
    call('ZREM', queue, unpack(plan.requests))
    save(plan.last, highest, plan.longest)
    call('HSET', facts, unpack(plan.facts))
    call('ZADD', holders, unpack(plan.scores))
    keep_holders(plan.longest, used - #ids)
  end
  local unheard = plan.other and publish_to(plan.other, 'granted', table.concat(plan.grants, ',')) == 0
  if unheard then  -- its hub counts as dead, and a reap goes on
    for _, id in ipairs(plan.told) do
      call('ZREM', holders, id)
      call('HDEL', facts, id)
    end
    call('ZADD', hubs, now, plan.other)
    call('HDEL', meta, 'looked')
  end
  if ARGV[7] == '' and #plan.own == 0 and not unheard then return { tag } end
  waiting = waiting - #plan.requests
  local moment = plan.behind and waiting > 0 and alive_until(plan.behind) or math.huge
  local first = waiting > 0 and call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
  moment = unheard and now or math.min(moment, math.ceil(first or math.huge))
  local reply = { tag, moment < math.huge and math.max(0, moment - now) or -1, waiting, plan.own }
  for i = 1, #ids do reply[4 + i] = 1 end
  return reply
end

local reply = give_back_all()
if reply then return reply end
