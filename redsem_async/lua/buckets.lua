-- buckets: what the rates have left.
--
-- Each rate is the generic cell rate algorithm (ITU-T I.371): a bucket that is full again at `tat`, in
-- us of the semaphore's clock. A request says for each rate, in the order of their names, what it costs
-- and how much the bucket holds (the burst): '<cost>/<burst>+...', both as the us in which the rate
-- allows so much. So Redis keeps no configuration. A request goes when the bucket has what it costs,
-- and one that costs more than the burst goes when the bucket is full, and leaves a debt.
--
-- meta     rates      '<tat>:<full>+...', full being when the bucket was last seen to be full

rated = rated or {}
local tats, fulls = {}, {}

function rated.load_state()
  tats, fulls = {}, {}
  for tat, full in string.gmatch(call('HGET', meta, 'rates') or '', '(%d+):(%d+)') do
    tats[#tats + 1], fulls[#fulls + 1] = tonumber(tat), tonumber(full)
  end
end
-- What meta is to have, and when all buckets are full, in us.
function rated.left()
  local texts, last = {}, 0
  for i, tat in ipairs(tats) do
    texts[i], last = string.format('%.0f:%.0f', tat, fulls[i]), math.max(last, tat)
  end
  return table.concat(texts, '+'), last
end
-- When the rates let a request of these *costs* go, in ms; nil where they do now.
function rated.lets_at(costs)
  local at, i = 0, 0
  for cost, burst in string.gmatch(costs, '(%d+)/(%d+)') do
    i = i + 1
    at = math.max(at, (tats[i] or 0) - math.max(0, burst - cost))
  end
  return at > now_us and math.ceil(at / 1000) or nil
end
-- Takes *us* from bucket *i*, or gives them back to a permit with this *token*: unless the bucket was
-- full since its grant, because then they were the bucket's loss.
local function take_from(i, us, token)
  if (tats[i] or 0) <= now_us then tats[i], fulls[i] = now_us, now_us end
  if us > 0 or token >= fulls[i] then tats[i] = math.max(now_us, tats[i] + us) end
end
-- A request of these *costs* gets its permits, *sign* being 1, or does not after all, -1; *token* is
-- that of a permit that it had.
function rated.spend(costs, sign, token)
  local i = 0
  for cost in string.gmatch(costs, '(%d+)/') do
    i = i + 1
    take_from(i, sign * cost, token or math.huge)
  end
end
