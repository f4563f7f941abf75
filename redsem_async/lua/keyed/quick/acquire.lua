-- quick acquire, with keys: grant all requests of the call, with the fewest commands.
--
-- The result is that of acquire. The quick path is taken when all of this is true:
--
--   1. what quick acquire without keys asks for: its 1 to 6
--   2. no limit of a key is set
--   3. `keys` says the key of each holder and of each request that waits, and has no other texts
--      than those of holders and requests: no key is ready or backs off
--   4. the requests are for one permit each, and fit within the limit and those of their keys
--   5. if others wait: queue_is_settled(), and no request of these keys waits
--
-- RETURNS  {tag, token}: all are granted, and token is the first of their consecutive tokens; or as
--          acquire does
-- USES     mark, unknown_hub, unreachable, fields, alive_until, now, liveness_timeout,
--          last, now_us, keep, wall_us, SLACK, PARKED, keys, key_limits, queue_is_settled

local lease, shares = tonumber(ARGV[5]), string.find(mode, 'share', 1, true)

-- What is written for the requests, whose first token is *token*; nil where they have to wait.
local function plan_grants(token, waiting)
  local plan = { tokens = {}, expiries = {}, texts = {}, stale = {}, meta = {} }
  local uses, times, virtual, highest = {}, {}, nil, mark
  for i = 11, #ARGV do
    local number, declared, weight, key = ARGV[i], '', '1', ''
    if not tonumber(number) then
      number, declared, weight, key =
        string.match(ARGV[i], '^(%d+):1:[01]:%d*:(%d*):([%d.]+):%d+:([^:]*)$')
    end
    if not number or tonumber(number) <= highest then return end
    highest = tonumber(number)
    local id, texts = hub .. '.' .. number, plan.texts
    plan.tokens[#plan.tokens + 1], plan.tokens[#plan.tokens + 2] = id, token
    plan.expiries[#plan.expiries + 1], plan.expiries[#plan.expiries + 2] = now + lease, id
    token = token + 1
    texts[#texts + 1], texts[#texts + 2] = 0, 'i:' .. id .. ':1:' .. key
    if waiting > 0 and call('ZLEXCOUNT', keys, '[l:' .. key .. '!', '(l:' .. key .. '"') > 0 then
      return
    end
    if key ~= '' then
      local held = 'u:' .. key .. '!00'
      uses[key] = (uses[key] or call('ZLEXCOUNT', keys, '[' .. held .. ':', '(' .. held .. ';')) + 1
      if uses[key] > (tonumber(declared) or math.huge) then return end
      texts[#texts + 1], texts[#texts + 2] = 0, held .. ':' .. id
    end
    if key ~= '' and shares then  -- its virtual time advances
      if not times[key] then
        local first = '[v:' .. key .. '!'
        local text = call('ZRANGEBYLEX', keys, first, '(v:' .. key .. '"', 'LIMIT', 0, 1)[1]
        plan.stale[#plan.stale + 1] = text
        times[key] = text and tonumber(string.sub(text, #first)) or 0
      end
      virtual = math.max(virtual or tonumber(call('HGET', meta, 'virtual')) or 0, times[key])
      times[key] = tonumber(string.format('%.6f', virtual + 1 / weight))
      plan.meta = { 'virtual', string.format('%.6f', virtual) }
    end
  end
  for key, time in pairs(times) do
    plan.texts[#plan.texts + 1], plan.texts[#plan.texts + 2] = 0, string.format('v:%s!%.6f', key, time)
  end
  plan.token, plan.highest = token - 1, highest
  return plan
end

local function grant_all()
  if tonumber(ARGV[8]) > mark or unknown_hub or unreachable or not fields[1] or ARGV[9] ~= ''
      or alive_until < now + liveness_timeout(lease) or fields[7]
      or call('EXISTS', extra, limit, key_limits) > 0 then
    return
  end
  local used, waiting = call('ZCARD', holders), call('ZCARD', queue)
  if waiting > 0 and not queue_is_settled(used) or used + #ARGV - 10 > tonumber(ARGV[6])
      or call('ZLEXCOUNT', keys, '[i:', '(i;') ~= used
      or call('ZCARD', keys) ~= used + waiting + call('ZLEXCOUNT', keys, '[u:', '(w') then
    return
  end
  local next_expiry = now + lease
  if used > 0 then
    local first = tonumber(call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2])
    if first <= now then return end
    next_expiry = math.min(next_expiry, first)
  end
  local token = math.max(last + 1, now_us)
  local plan = plan_grants(token, waiting)
  if not plan then return end
  -- The first write can fail, because the script has not read this key: nothing is written then.
  call('HSET', tokens, unpack(plan.tokens))
  call('ZADD', holders, unpack(plan.expiries))
  if #plan.stale > 0 then call('ZREM', keys, unpack(plan.stale)) end
  call('ZADD', keys, unpack(plan.texts))
  for _, key in ipairs({ holders, tokens, keys }) do keep(key, lease) end
  call('HSET', meta, 'counter', plan.token, hub, plan.highest, unpack(plan.meta))
  -- A counter ahead of the clock has to be kept for longer. A caller's clock is not the one that
  -- expires keys.
  if plan.token > wall_us or clock_us ~= '' then
    keep(meta, lease + (plan.token - wall_us) / 1000 + SLACK)
  end
  if waiting == 0 then return { tag, token } end
  waiting = waiting - call('ZCOUNT', queue, '-inf', string.format('(%.0f', -PARKED))
  local reply = { tag, next_expiry - now, waiting, {}, -1, -1, {} }
  for i = token, plan.token do reply[#reply + 1] = i end
  return reply
end

local reply = grant_all()
if reply then return reply end
